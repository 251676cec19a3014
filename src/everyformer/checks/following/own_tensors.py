"""Tensors that a module reads: its own, which its copies have too, or those it makes.

Whatever a deep copy copies is the module's own: parameters, buffers, and tensors and arrays
in its attributes. Any other tensor is shared by all copies, whatever their weights: one in
a global or a closure, in an object that is not copied, or the memory of an array.
"""

import copy
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from everyformer.checks.following.contents import reach
from everyformer.checks.following.fixed import changeable, is_trusted
from everyformer.checks.following.outside import reads_outside

COPYING = frozenset(
    ["__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__",
     "__setstate__", "__getnewargs__", "__getnewargs_ex__"]
)  # fmt: skip
"""Methods by which a class makes copies of its objects itself."""


def not_its_own(module: nn.Module, x: torch.Tensor) -> str:
    """What a module reads that a copy of it would not have; "" if nothing.

    Args:
        module: The module.
        x: An input.
    """
    held, common = held_by(module)
    with torch.no_grad():
        return (
            _copies_itself(held)
            or _changeable_in_common(common)
            or _shared(module, x, held)
            or reads_outside(lambda: module(x.clone()), [*held, *common])
        )


def held_by(module: nn.Module) -> tuple[list[object], list[object]]:
    """The module and all objects in it that a copy has copies of; those that both hold."""
    memo: dict[int, Any] = {}
    own, others = reach(module), reach(copy.deepcopy(module, memo))
    common = [one for key, one in own.items() if key in others]
    return [module, *memo.get(id(memo), ())], common


def _changeable_in_common(common: Collection[object]) -> str:
    """The kind of what a module and its copy both hold, and a run of either may change.

    Patterns and what else this library shares between copies are not changed by it.
    """
    ours = [one for one in common if _is_of_this_library(type(one))]
    known = {key for one in ours for key in reach(one)}
    for one in common:
        why = "" if id(one) in known else changeable(one)
        if why:
            return f"it holds what its copies hold, too: {why}"
    return ""


def _is_of_this_library(kind: type) -> bool:
    return is_trusted(kind) and kind.__module__.partition(".")[0] == "everyformer"


def _copies_itself(held: Collection[object]) -> str:
    """The class that makes its own copies: these may be anything."""
    for kind in {type(one) for one in held}:
        for base in kind.__mro__:
            own = COPYING & vars(base).keys()
            if own and not is_trusted(base):
                return f"copies are judged, and {base.__name__}.{min(own)} makes its own"
    return ""


def _shared(module: nn.Module, x: torch.Tensor, held: Collection[object]) -> str:
    """The shape of a tensor that is neither the module's own nor made in a run.

    A number beside a tensor, and what is made of a list or an array, come from no
    operation. They are new in every run, unless they are memory that was there before.
    """
    tensors = [one for one in held if isinstance(one, torch.Tensor)]
    arrays = [one for one in held if isinstance(one, np.ndarray)]
    runs: list[_Reads] = []
    for _ in range(2):  # what the first run read stays alive, so that its memory is its own
        given = x.clone()
        with _Reads([given, *tensors], arrays) as reads:
            module(given)
        runs.append(reads)
    before = {one.data_ptr() for one in runs[0].new}
    again = [
        one
        for one in runs[1].new
        if id(one) in runs[0].known or (one.numel() and one.data_ptr() in before)
    ]
    for one in (*runs[0].strange, *again):
        sizes = tuple(one.shape)
        return f"it reads a tensor of shape {sizes} that is not its own, and not made by it"
    return ""


class _Reads(TorchDispatchMode):
    """Notes tensors that operations read and none made.

    Attributes:
        strange: Those with dimensions that nothing made.
        new: Numbers, and tensors made of lists or arrays.
    """

    def __init__(self, own: Iterable[torch.Tensor], arrays: Iterable[np.ndarray]) -> None:
        super().__init__()
        self.known = {id(one): one for one in own}
        self.memory = [np.lib.array_utils.byte_bounds(one) for one in arrays]
        self.strange: list[torch.Tensor] = []
        self.new: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.split(".")[0]
        for one in tree_leaves((args, kwargs)):
            if not isinstance(one, torch.Tensor) or id(one) in self.known:
                continue
            self.known[id(one)] = one
            if not any(start <= one.data_ptr() < end for start, end in self.memory):
                (self.new if name == "lift_fresh" or not one.ndim else self.strange).append(
                    one
                )
        found = func(*args, **kwargs)
        if name == "set_":  # other memory under the name of a tensor
            self.strange.append(found)
        self.known |= {id(y): y for y in tree_leaves(found) if isinstance(y, torch.Tensor)}
        return found
