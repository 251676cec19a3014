"""Launch Triton kernels, many of which run shorter than Triton looks for their binary."""

from typing import Any

import torch
from torch import Tensor

MOST_KEYS = 4096
"""Kinds of calls that are remembered; then all are forgotten, and looked up anew."""

_BINARIES: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
    """What kernel[grid](*given, **options) does, with a shorter look-up.

    A binary depends on dtypes and on the alignment of tensors, on whether integers are 1,
    multiples of 16 or long, and on the options; never on a float. The key says all of it.

    Args:
        kernel: A function by `triton.jit`.
        grid: Numbers of programs.
        given: The arguments but for constants, in order.
        options: The constants, which come last in the signature, and options of Triton.
    """
    device = given[0].device
    if device.type != "cuda":  # the interpreter
        kernel[grid](*given, **options)
        return
    key = (kernel, device.index, *map(_kind, given), *options.items())
    with torch.cuda.device(device):
        if key in _BINARIES:
            binary, constants = _BINARIES[key]
            binary[(*grid, 1, 1)[:3]](*given, *constants)
            return
        binary = kernel[grid](*given, **options)
    if len(_BINARIES) >= MOST_KEYS:
        _BINARIES.clear()
    constants = tuple(options[name] for name in kernel.arg_names[len(given) :])
    _BINARIES[key] = (binary, constants)


def _kind(x: Any) -> Any:
    """What a binary may depend on."""
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16
    return None if type(x) is float else x
