"""An attention module becomes one of a class that computes the same with our operator.

The new class is `type(name, (ours, original))`: everything else of the module stays, its
parameters too, and `isinstance` holds. Copies and pickles name the two classes.
"""

from functools import cache
from typing import Any

from torch import nn


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
        module.__class__ = swapped(type(module), ours)


def unswap(module: nn.Module) -> None:
    """Give a module its class back."""
    module.__class__ = original(module)


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
