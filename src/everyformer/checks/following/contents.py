"""What an object holds, as Python's protocol of copies sees it.

A deep copy copies what lies in containers, in attributes and slots, and what an object's
`__reduce_ex__` names: iterators, queues, sources of random numbers. Functions, classes,
weak references and methods in C are their own copies. So what a run can change in a module
is seen in these parts, or is held by its copies as well.
"""

import copyreg
import types
import warnings
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from everyformer.checks.following.fixed import PLAIN

SAME = (
    type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType,
    types.GetSetDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType,
    weakref.ref, property, np.dtype, np.generic,
)  # fmt: skip
"""Kinds of objects that have no parts here."""

LARGEST_KEPT = 2**22
"""Numbers of a tensor that are compared one by one."""


def parts_of(value: object) -> list[object]:
    """The objects that a deep copy of a value copies first; none in numbers and code."""
    if type(value) in PLAIN or isinstance(value, SAME):
        return []
    if type(value) in (list, tuple, set, frozenset):
        return list(value)  # type: ignore[call-overload]
    if type(value) is dict:
        return [*value.keys(), *value.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    own = list(_attributes(value))
    if isinstance(value, torch.Tensor | nn.Module):
        return own
    if isinstance(value, np.ndarray):
        return [*own, *(value.flat if value.dtype.hasobject else ())]
    return [*own, *_reduced(value)]


def reach(value: object) -> dict[int, object]:
    """All objects in a value but numbers, and it, by their ids. They are kept alive."""
    found: dict[int, object] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) not in found and type(one) not in PLAIN:
            found[id(one)] = one
            waiting.extend(parts_of(one))
    return found


def fingerprint(module: nn.Module) -> dict[str, Hashable]:
    """What each attribute of the parts of a module holds, down to numbers."""
    found: dict[str, Hashable] = {}
    known: dict[int, tuple[object, Hashable]] = {}  # kept alive: ids stay their own
    for name, part in module.named_modules():
        held = {**vars(part), **vars(part)["_buffers"], **vars(part)["_parameters"]}
        for key, value in held.items():
            if key in ("_buffers", "_parameters", "_modules"):
                continue
            if id(value) not in known:
                known[id(value)] = value, _content(value)
            found[f"{name}.{key}".lstrip(".")] = known[id(value)][1]
    return found


def _content(value: object) -> Hashable:
    """A value, and in turn all that it holds; what occurs again by its number."""
    found: list[Hashable] = []
    seen: dict[int, tuple[int, object]] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if type(one) in PLAIN:
            found.append((type(one), repr(one)))
        elif id(one) in seen:
            found.append(seen[id(one)][0])
        else:
            seen[id(one)] = len(seen), one
            parts = parts_of(one)
            found.append((_own(one), len(parts)))
            waiting.extend(reversed(parts))
    return tuple(found)


def _own(value: object) -> Hashable:
    """What an object is without its parts."""
    if isinstance(value, torch.Tensor):
        if isinstance(value, nn.Parameter) or value.numel() > LARGEST_KEPT:
            return id(value), value._version  # pyright: ignore[reportPrivateUsage]
        numbers = value.detach().cpu().reshape(-1).contiguous()
        return value.shape, value.dtype, hash(numbers.view(torch.uint8).numpy().tobytes())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.shape, str(value.dtype), hash(value.tobytes())
    if isinstance(value, np.dtype | np.generic):
        return repr(value)
    return id(value) if isinstance(value, SAME) else type(value)


def _attributes(value: object) -> Iterator[object]:
    """What an object has in its dictionary and in slots."""
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            slot = vars(kind).get(name)
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, name):
                yield slot.__get__(value)


def _reduced(value: Any) -> Iterator[object]:
    """What a copy of an object is made of, where the object says it."""
    made: Any = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # iterators will not say it for ever
        try:
            own = copyreg.dispatch_table.get(type(value))
            made = own(value) if own else value.__reduce_ex__(4)
        except Exception:
            return
    if not isinstance(made, tuple):
        return
    said: list[Any] = [*made, None, None, None]
    given, state, items, pairs = said[1:5]
    yield from given
    yield from state.values() if isinstance(state, dict) else (state,)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    yield from items or ()
    for pair in pairs or ():
        yield from pair
