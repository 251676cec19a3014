"""How coarsely a module computes: some parts of a float64 module work in float32 still.

Norms and softmaxes of published models cast to float32 whatever they are given. Their
rounding is seen in all that is measured, and must not be taken for a violation.
"""

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from everyformer.checks.calling import Layout, call

ISOLATED = 1e-9
"""Outputs that differ by less, relative to their size, are the same in float64.

The sums of a batch may be taken in another order than those of one sequence."""

VIOLATED = 1e-6
"""A violation beyond this, relative to the output, is not rounding in float64."""

FINE = torch.finfo(torch.float64).eps
SINGLE = torch.finfo(torch.float32).eps


def coarseness(module: nn.Module, x: torch.Tensor, layout: Layout) -> float:
    """The largest eps of the types of all tensors that are made of an input.

    Operations of operations, such as `torch.cond`, cannot be watched: then it is that of
    what came before.
    """
    given = x.clone()
    seen = _Types(given)
    try:
        with torch.no_grad(), seen:
            call(module, given, layout)
    except Exception:
        torch.compiler.reset()  # it remembers what failed while it was watched
    return seen.eps


def violated(eps: float) -> float:
    """A violation that is not rounding of numbers with this eps, 10^4 of which add up."""
    return max(VIOLATED, 1e4 * eps)


def isolated(eps: float) -> float:
    """Outputs that differ by less are the same, in float64 or, in part, in float32."""
    return 1e3 * eps if eps == SINGLE else ISOLATED


class _Types(TorchDispatchMode):
    """Notes the types of tensors that are made of an input."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.made = {id(x): x}  # kept alive, so that their ids stay their own
        self.eps = FINE

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        held = [y for y in tree_leaves((args, kwargs)) if isinstance(y, torch.Tensor)]
        found = func(*args, **kwargs)
        if any(id(y) in self.made for y in held):
            for y in tree_leaves(found):
                if isinstance(y, torch.Tensor):
                    self.made[id(y)] = y
                    if y.is_floating_point():
                        self.eps = max(self.eps, torch.finfo(y.dtype).eps)
        return found
