"""An attention module becomes one of a class that computes the same with our operator.

The new class is `type(name, (ours, original))`: everything else of the module stays, its
parameters too, and `isinstance` holds. Copies and pickles name the two classes.
"""

from functools import cache
from types import MethodType
from typing import Any

from torch import nn

HELD = ("forward", "_old_forward")
"""Where accelerate keeps the forward of a module that it hooks (models on several
devices): its own function under the first name, the forward of the class under the second.
Without the second, the first is what a hook has left, or somebody's own."""


class Swapped(nn.Module):
    """Base of the classes that go before an original one."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By the two classes, as the one made of them has no place of its own."""
        _, _, *state = super().__reduce_ex__(protocol)
        ours, first = type(self).__bases__
        return _made, (first, ours), *state


@cache
def swapped(original: type[nn.Module], ours: type[Swapped]) -> type[nn.Module]:
    """The class of both."""
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    return type(original.__name__, (ours, original), names)


def swap(module: nn.Module, ours: type[Swapped]) -> None:
    """Let a module compute as `ours` says; a second time changes nothing."""
    if not isinstance(module, Swapped):
        _turn(module, swapped(type(module), ours))


def unswap(module: nn.Module) -> None:
    """Give a module its class back."""
    if isinstance(module, Swapped):
        _turn(module, original(module))


def _turn(module: nn.Module, kind: type[nn.Module]) -> None:
    """Change the class of a module, and whatever of it holds the forward of the old one."""
    before = type(module).forward
    module.__class__ = kind
    for name in HELD:
        held = vars(module).get(name)
        if getattr(held, "__func__", None) is before:
            vars(module)[name] = MethodType(kind.forward, module)


def forward_is_its_own(module: nn.Module) -> bool:
    """Whether a module runs what its class was defined with, perhaps under a hook.

    A function that was put in its place knows nothing of the masks that we hand it.
    """
    kind = original(module)
    held = [vars(module)[name] for name in reversed(HELD) if name in vars(module)]
    own = not held or getattr(held[0], "__func__", None) is type(module).forward
    return own and kind.forward.__module__ == kind.__module__


def original(module: nn.Module) -> type[nn.Module]:
    """The class that transformers gave the module."""
    if not isinstance(module, Swapped):
        return type(module)
    bases = type(module).__bases__
    return bases[1]


def _made(original: type[nn.Module], ours: type[Swapped]) -> nn.Module:
    """A module of both classes, whose state follows."""
    made = swapped(original, ours)
    return made.__new__(made)
