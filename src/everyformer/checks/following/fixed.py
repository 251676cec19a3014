"""Whether a value that many copies of a module share can change: code and numbers cannot.

Code is taken as it is: functions, classes and modules may be exchanged while a program
runs, but then the module is another one. Numbers, strings and what consists of them alone,
such as tuples and frozen dataclasses, stay what they are.
"""

import enum
import functools
import logging
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload, OpOverloadPacket

TRUSTED = sys.stdlib_module_names | {
    "torch", "numpy", "everyformer", "transformers", "torch_geometric", "einops",
    "beartype", "jaxtyping",
}  # fmt: skip
"""Packages whose functions are taken to keep nothing but in tensors."""

CODE = (
    type, types.ModuleType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType, property,
    staticmethod, classmethod, functools.cached_property, np.ufunc, logging.Logger,
    type(np.cumsum), OpOverload, OpOverloadPacket, torch.jit.ScriptFunction, re.Pattern,
)  # fmt: skip
PLAIN = frozenset(
    [type(None), bool, int, float, complex, str, bytes, range, slice, type(...),
     type(NotImplemented), torch.dtype, torch.device, torch.layout, torch.memory_format]
)  # fmt: skip
DEEPEST = 8


def trusted(scope: Mapping[str, Any]) -> bool:
    """Whether globals are those of a package of `TRUSTED`.

    A module may have two names: `_collections_abc` calls itself collections.abc.
    """
    for name in (scope.get("__name__"), getattr(scope.get("__spec__"), "name", None)):
        package = sys.modules.get(str(name))
        known = str(name).partition(".")[0] in TRUSTED
        if known and package is not None and vars(package) is scope:
            return True
    return False


def is_trusted(kind: type) -> bool:
    """Whether a class is one of a package of `TRUSTED`."""
    package = sys.modules.get(kind.__module__)
    return package is not None and trusted(vars(package))


def changeable(value: object, deep: int = 0) -> str:
    """Why a value is not fixed; "" if it is."""
    if type(value) in PLAIN or isinstance(value, np.generic) or _is_code(value):
        return ""
    parts = _parts(value) if deep < DEEPEST else None
    if parts is None:
        return f"a {type(value).__name__}, which can be changed"
    return next(filter(None, (changeable(one, deep + 1) for one in parts)), "")


def _is_code(value: object) -> bool:
    if isinstance(value, types.FunctionType):
        return not vars(value) or trusted(value.__globals__)
    if isinstance(value, types.BuiltinFunctionType | types.MethodType):
        owner = value.__self__
        return owner is None or isinstance(owner, type | types.ModuleType)
    kind = type(value).__module__.partition(".")[0]
    return isinstance(value, CODE) or kind in ("typing", "beartype", "jaxtyping")


def _parts(value: object) -> Iterator[object] | None:
    """What something consists of that is fixed itself; None if it is not."""
    if isinstance(value, tuple | frozenset):
        return iter(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, types.MappingProxyType):
        return iter(value.values())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, functools.partial):
        return iter((value.func, *value.args, *value.keywords.values(), *vars(value)))
    if isinstance(value, types.FunctionType | enum.Enum):
        return iter(vars(value).values())
    if isinstance(value, types.BuiltinFunctionType | types.MethodType):
        return iter((value.__self__,))
    if is_dataclass(value) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return iter([getattr(value, one.name) for one in fields(value)])
    return None
