"""Operations on entries."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from everyformer.checks.following.facts import FINITE, Dims, Facts, Shape, unknown
from everyformer.checks.following.registry import (
    aligned,
    moves_together,
    past_together,
    rule,
    tensors_of,
)

ZERO_AT_ZERO = frozenset(
    [
        "add",
        "sub",
        "mul",
        "neg",
        "relu",
        "gelu",
        "silu",
        "tanh",
        "abs",
        "sin",
        "leaky_relu",
        "elu",
        "hardtanh",
    ]
)
"""Pointwise operations with f(0, .., 0) = 0."""

SINGULAR = frozenset(["log", "log2", "log10", "log1p", "logit"])
"""Pointwise operations that make -inf of finite numbers."""


def pointwise(name: str, args: Sequence[Any], kwargs: Any, shape: Shape) -> Facts:
    """An operation on entries, with broadcasting."""
    inputs = tensors_of((args, tuple(kwargs.values())))
    rank = len(shape)

    def along(dims: Callable[[Facts], Dims]) -> Dims:
        """Dimensions that all operands have, or that they are copied along."""
        own = [[aligned(fact, d, rank) for fact in inputs] for d in range(rank)]
        return frozenset(
            d
            for d in range(rank)
            if all(k is None or k in dims(f) for k, f in zip(own[d], inputs, strict=True))
        )

    scalars = [a for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    zero = name in ZERO_AT_ZERO and all(f.zero for f in inputs) and not any(scalars)
    if name in ("mul", "div"):
        zero = bool(inputs) and (inputs[0].zero or (name == "mul" and inputs[-1].zero))
        finite = all(f.zero or f.is_finite for f in inputs)
        zero = zero and finite and all(math.isfinite(a) for a in scalars)
    return Facts(
        shape,
        any(f.depends for f in inputs),
        along(lambda f: f.uniform),
        copied=along(lambda f: f.copied),
        moves=moves_together(inputs, rank),
        zero=zero,
        past=past_together(inputs, rank),
        blocked=_blocked(name, args, inputs, shape),
    )


def _blocked(
    name: str, args: Sequence[Any], inputs: list[Facts], shape: Shape
) -> torch.Tensor | None:
    """Where the result may be -inf."""
    if name == "masked_fill" and len(inputs) >= 2:
        mask, fill = inputs[1].value, args[2]
        fill = fill.value if isinstance(fill, Facts) else fill
        if inputs[0].blocked is None or mask is None or fill is None:
            return None
        filled = mask & (float(fill) == -math.inf)
        return (inputs[0].blocked | filled).broadcast_to(shape)
    if name == "where" and len(inputs) == 3:
        choice, yes, no = inputs
        if yes.blocked is None or no.blocked is None:
            return None
        if choice.value is None:
            return (yes.blocked | no.blocked).broadcast_to(shape)
        return torch.where(choice.value, yes.blocked, no.blocked).broadcast_to(shape)
    scalars = [a for a in args if isinstance(a, float)]
    if any(not math.isfinite(a) for a in scalars):
        return None
    if name == "add" and all(f.blocked is not None for f in inputs):
        blocked = FINITE
        for fact in inputs:
            assert fact.blocked is not None, "asked above"  # noqa: S101
            blocked = blocked | fact.blocked
        return blocked.broadcast_to(shape)
    if name in SINGULAR or not all(f.is_finite for f in inputs):
        return None
    return FINITE


@rule("clone", "_to_copy", "alias", "contiguous", "detach", "lift_fresh_copy", "dropout")
def same(x: Facts, *args: Any, shape: Shape, **kwargs: Any) -> Facts:
    """The same numbers (dropout: of a module that is not in training)."""
    if args and args[-1] is True:
        return unknown(shape, [x])
    return replace(x, value=None)
