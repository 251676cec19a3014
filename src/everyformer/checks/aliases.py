"""Memory that a module has two names for, one of which is that of a parameter.

A copy parts them. A buffer that is a parameter's memory would then be a constant, and two
parameters of one memory would be free of each other, which they are not.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import torch
from torch import nn

from everyformer.errors import InputError

Memory = torch.Tensor | np.ndarray

DEEPEST = 4
"""Containers and objects in each other that are looked into."""


def refuse_aliases(module: nn.Module, run: Callable[[nn.Module], object]) -> None:
    """Refuse a module with a tensor or array that lies in the memory of a parameter.

    One parameter with several names is not such a tensor: its copies are one again. Nor is
    a tensor that a run replaces, as that of `torch.nn.utils.spectral_norm`.

    Args:
        module: The module.
        run: Runs a copy; a copy that cannot be run may raise.

    Raises:
        InputError: If there is one.
    """
    found = _aliases(module)
    if not found:
        return
    with suppress(Exception):
        own = copy.deepcopy(module).eval()
        before = dict(_held(own))
        run(own)
        stayed = {name for name, one in _held(own) if one is before.get(name)}
        found = {alias: weight for alias, weight in found.items() if alias in stayed}
    for alias, weight in found.items():
        msg = f"{type(module).__name__}: {alias} lies in the memory of {weight}"
        raise InputError(
            f"{msg}, a parameter, so that neither changes alone. Use the parameter itself, "
            "or a copy (.clone()) of its numbers."
        )


def _aliases(module: nn.Module) -> dict[str, str]:
    """Names of tensors that lie in the memory of parameters, with those of the latter."""
    held: dict[int, tuple[str, Memory]] = {}
    for name, tensor in _held(module):
        held.setdefault(id(tensor), (name, tensor))
    known = [(*_extent(t), name, isinstance(t, nn.Parameter)) for name, t in held.values()]
    found: dict[str, str] = {}
    last: dict[bool, tuple[int, str]] = {}  # where parameters, and others, end so far
    for start, end, name, free in sorted(known):
        for also, (before, other) in last.items():
            if start < before and (free or also):
                weight, alias = (other, name) if also else (name, other)
                found[alias] = weight
        if start < end and end > last.get(free, (0, ""))[0]:
            last[free] = (end, name)
    return found


def _extent(tensor: Memory) -> tuple[int, int]:
    """Its first byte, and one beyond its last; nothing without memory."""
    if isinstance(tensor, np.ndarray):
        return np.lib.array_utils.byte_bounds(tensor) if tensor.size else (0, 0)
    if tensor.layout != torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return 0, 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _held(module: nn.Module) -> Iterator[tuple[str, Memory]]:
    """Tensors and arrays that parts of a module hold, parameters first, with names."""
    yield from module.named_parameters()
    for path, part in module.named_modules():
        for key, value in (*part._buffers.items(), *vars(part).items()):  # pyright: ignore[reportPrivateUsage]
            for one in _tensors(value, DEEPEST):
                yield f"{path}.{key}".lstrip("."), one


def _tensors(value: object, depth: int) -> Iterator[Memory]:
    if isinstance(value, Memory):
        yield value
    elif depth and isinstance(value, list | tuple):
        for one in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _tensors(one, depth - 1)  # pyright: ignore[reportUnknownArgumentType]
    elif depth and isinstance(value, dict):
        for one in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _tensors(one, depth - 1)  # pyright: ignore[reportUnknownArgumentType]
    elif depth and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        for one in vars(value).values():
            yield from _tensors(one, depth - 1)
