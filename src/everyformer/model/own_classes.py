"""Whether a layer is what the library wrote, so that what it says of itself counts.

A `spec()` describes one `forward`, with the methods it calls and the parts it has. It says
nothing of a subclass that changes one of them, of an object with another method or a hook,
nor of a layer one of whose parts was exchanged.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules import module as all_modules

from everyformer.model.attention_spec import AttentionSpec, spec_of

C = TypeVar("C", bound=type)
Members = dict[str, tuple[object, object]]

FREE = frozenset(
    ["__init__", "__doc__", "__module__", "__qualname__", "__annotations__", "__dict__",
     "__weakref__", "__slotnames__", "__static_attributes__", "__firstlineno__",
     "__parameters__", "__orig_bases__", "__abstractmethods__", "__annotations_cache__",
     "__annotate__", "__annotate_func__", "_abc_impl", "extra_repr", "reset_parameters",
     "__setstate__", "___needs_generation_tag_patch"]
)  # fmt: skip
"""Members of a class that do not change what its objects compute.

The last two, and `__init__`, are exchanged by torch.compile in `nn.Module` itself."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def _members(cls: type) -> Members:
    """What a class defines, with the code of its functions."""
    return {
        name: (value, getattr(value, "__code__", None))
        for name, value in vars(cls).items()
        if name not in FREE
    }


_KNOWN: dict[type, Members] = {}
_PARTS: dict[type, dict[str, type]] = {}
_BUFFERS: dict[type, tuple[str, ...]] = {}


def describes_itself(*, buffers: tuple[str, ...] = (), **parts: type) -> Callable[[C], C]:
    """Mark a class of the library whose objects are known by their class.

    Its base classes are kept in mind as they are now, too.

    Args:
        buffers: Names of its buffers.
        parts: The modules an object has, by name, and of which class each is.
    """

    def mark(cls: C) -> C:
        for base in cls.__mro__[:-1]:
            _KNOWN.setdefault(base, _members(base))
        _PARTS[cls], _BUFFERS[cls] = parts, buffers
        return cls

    return mark


describes_itself()(nn.Linear)


def stranger(layer: nn.Module) -> str:
    """Why a layer, or a part of it, is not what the library wrote; "" if it is."""
    for hooks in HOOKS:
        if getattr(all_modules, f"_global{hooks}"):
            return "there are forward hooks on all modules"
    own = next((cls for cls in type(layer).__mro__ if cls in _PARTS), None)
    name = type(layer).__name__
    if own is None:
        return f"{name} is not a class of the library"
    why = _changed_class(type(layer), own, layer) or _changed_object(layer, own)
    if why:
        return f"{name}: {why}"
    for key, part in vars(layer)["_modules"].items():
        if part is None:
            continue
        if not isinstance(part, _PARTS[own].get(key, ())):
            return f"{name}: {key} is of class {type(part).__name__}"
        why = stranger(part)
        if why:
            return why
    return ""


def _changed_class(cls: type, own: type, layer: nn.Module) -> str:
    """Members that a subclass overrides, or that were exchanged in the class itself.

    Other libraries add methods to `nn.Module`. A new member changes nothing unless Python
    looks for it by itself, or another class or the object has one of that name.
    """
    of_object = set(_names(layer))
    for base in own.__mro__[:-1]:
        now, then = _members(base), _KNOWN[base]
        others = {
            name for other in own.__mro__ if other is not base for name in vars(other)
        }
        changed = [name for name in then if now.get(name) != then[name]]
        changed += [
            name
            for name in now.keys() - then.keys()
            if name.startswith("__") or name in others | of_object
        ]
        if changed:
            return f"{base.__name__}.{min(changed)} was exchanged"
    taken = {name for base in own.__mro__ for name in vars(base)} | of_object
    for base in cls.__mro__:
        if base in own.__mro__:
            continue
        hiding = {  # what is read by a property may differ from one time to the next
            name
            for name, value in vars(base).items()
            if name.startswith("__")
            or (hasattr(value, "__get__") and not _is_method(value))
        }
        overrides = (taken & set(vars(base)) | hiding) - FREE
        if overrides:
            return f"{base.__name__} overrides {', '.join(sorted(overrides))}"
    return ""


def _is_method(value: object) -> bool:
    return isinstance(value, FunctionType | staticmethod | classmethod)


def _names(layer: nn.Module) -> Iterator[str]:
    """Of all that was set on the object."""
    yield from vars(layer)
    for held in ("_parameters", "_buffers", "_modules"):
        yield from vars(layer)[held]


def _changed_object(layer: nn.Module, own: type) -> str:
    """Methods and settings of the object itself, hooks, and tensors that are not free."""
    held = vars(layer)
    for hooks in HOOKS:
        if held.get(hooks):
            return "it has forward hooks"
    of_class = {name for base in own.__mro__ for name in vars(base)}
    plain = {"name", "training"}
    for key in _names(layer):
        if key in of_class and key not in plain and held.get(key) is not None:
            return f"the object has a {key} of its own"
    for key, value in {**held, **held["_buffers"]}.items():
        if isinstance(value, torch.Tensor) and key not in _BUFFERS[own]:
            return f"{key} is a tensor that is not a parameter"
    for key, value in held["_parameters"].items():
        if value is not None and type(value) is not nn.Parameter:
            return f"{key} is of type {type(value).__name__}"
    return ""


def unchanged(layer: nn.Module) -> bool:
    """Whether one object has no hooks, no methods of its own and no parametrisations.

    Its parts are not looked at.
    """
    held = vars(layer)
    hooked = any(getattr(all_modules, f"_global{hooks}") for hooks in HOOKS)
    own = {name for base in type(layer).__mro__ for name in vars(base)}
    replaced = (set(held) & own) - {"training"}
    return not (hooked or any(held.get(hooks) for hooks in HOOKS) or replaced)


def fixed_parameters(layer: nn.Module) -> tuple[str, ...]:
    """Parameters that cannot take any value, whatever the others do.

    Those that do not require gradients, that appear twice, or whose numbers lie in the
    memory of another.
    """
    named = [
        (name, value)
        for name, value in layer.named_parameters(remove_duplicate=False)
        if value.numel()
    ]
    places = [value.untyped_storage().data_ptr() for _, value in named]
    found: list[str] = []
    for (name, value), place in zip(named, places, strict=True):
        alone = places.count(place) == 1 and value.is_contiguous()
        if not (value.requires_grad and alone and value.is_floating_point()):
            found.append(name)
    return tuple(found)


@dataclass(frozen=True)
class Description:
    """What a layer says of itself, and whether that counts.

    Attributes:
        spec: None if it says nothing.
        doubt: Why it does not count: the layer is not what the library wrote. "" if it
            does.
    """

    spec: AttentionSpec | None
    doubt: str = ""


def described(layer: nn.Module, seq_len: int) -> Description:
    """The spec of a layer at a length; it counts for the library's own forward alone."""
    doubt = stranger(layer)
    try:
        spec = spec_of(layer, seq_len)
    except Exception as error:
        return Description(None, f"its spec() failed: {error}")
    if spec is None:
        return Description(None)
    fixed = fixed_parameters(layer)
    return Description(replace(spec, fixed=(*spec.fixed, *fixed)), doubt)
