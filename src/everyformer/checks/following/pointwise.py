"""Operations on entries."""

import cmath
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Number
from typing import Any

import torch

from everyformer.checks.following.facts import FINITE, Dims, Facts, Shape, unknown
from everyformer.checks.following.hearing import together
from everyformer.checks.following.registry import (
    aligned,
    moves_together,
    rows_together,
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

FINITE_ON_FINITE = ZERO_AT_ZERO | frozenset(
    [
        "cos",
        "exp",
        "sigmoid",
        "erf",
        "clamp",
        "maximum",
        "minimum",
        "softplus",
        "where",
        "masked_fill",
        "logical_not",
        "logical_and",
        "logical_or",
        "bitwise_not",
        "sign",
        "floor",
    ]
)
"""Pointwise operations that never make -inf of finite numbers, but for overflow."""


def pointwise(name: str, args: Sequence[Any], kwargs: Any, shape: Shape) -> Facts:
    """An operation on entries, with broadcasting.

    An entry of the result is one function, the same everywhere, of the entries of the
    operands that meet there. So it is constant where all of them are; it moves with the
    tokens where each of them moves or has copies; it hears what they hear.
    """
    inputs = tensors_of((args, tuple(kwargs.values())))
    rank = len(shape)
    if shape != torch.broadcast_shapes(*(f.shape for f in inputs)):
        return unknown(shape, inputs)

    def along(dims: Callable[[Facts], Dims]) -> Dims:
        """Dimensions that all operands have, or that they are copied along."""
        own = [[aligned(fact, d, rank) for fact in inputs] for d in range(rank)]
        return frozenset(
            d
            for d in range(rank)
            if all(k is None or k in dims(f) for k, f in zip(own[d], inputs, strict=True))
        )

    scalars = [a for a in (*args, *kwargs.values()) if isinstance(a, Number)]
    zero = name in ZERO_AT_ZERO and all(f.zero for f in inputs) and not any(scalars)
    if name == "mul":
        finite = all(f.zero or f.is_finite for f in inputs) and _are_finite(scalars)
        zero = any(f.zero for f in inputs) and finite
    if name == "div":
        finite = _are_finite(scalars) and all(f.is_finite for f in inputs[1:])
        zero = inputs[0].zero and finite and _stays_finite(name, args, scalars)
    return Facts(
        shape,
        any(f.depends for f in inputs),
        along(lambda f: f.uniform),
        copied=along(lambda f: f.copied),
        moves=moves_together(inputs, rank),
        zero=zero,
        heard=together([(f.heard, f.shape) for f in inputs], shape),
        blocked=_blocked(name, args, kwargs, inputs, shape),
        hidden=_hidden(name, args, kwargs, shape),
        silent=_silent(name, inputs, scalars, shape),
        rows=rows_together(inputs, rank),
        means=all(f.means and not f.weighs for f in inputs),
        least=_least(name, args, kwargs),
        affine=all(f.is_affine for f in inputs) and _is_affine(name, args, kwargs),
    )


def _is_affine(name: str, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether a result is affine in those operands that depend on the tokens.

    A sum is, and a product or quotient of one that does with others that do not.
    """
    depends = [isinstance(one, Facts) and one.depends for one in args]
    if name in ("add", "sub"):
        return all(isinstance(one, Number) for one in kwargs.values())
    if name == "div":
        return not kwargs and not any(depends[1:])
    return name == "neg" or (name == "mul" and not kwargs and sum(depends) <= 1)


def _least(name: str, args: Sequence[Any], kwargs: Any) -> float:
    """A lower bound of the result: what keeps roots and quotients finite."""
    first = args[0] if args and isinstance(args[0], Facts) else None
    if first is None:
        return -math.inf
    second = args[1] if len(args) > 1 else None
    if name in ("relu", "abs", "exp", "sigmoid", "sqrt") or (
        (name == "pow" and second in (2, 4)) or (name == "mul" and second is first)
    ):
        return 0.0
    if name == "add" and len(args) == 2 and not kwargs:
        other = second.least if isinstance(second, Facts) else second
        return first.least + other if isinstance(other, float | int) else -math.inf
    if name in ("mul", "div") and isinstance(second, float | int) and second > 0:
        return 0.0 if first.least >= 0 else -math.inf
    return -math.inf


def _stays_finite(name: str, args: Sequence[Any], scalars: Sequence[Any]) -> bool:
    """Whether finite operands have a finite result, but for overflow."""
    if name in FINITE_ON_FINITE:
        return True
    first = args[0] if args and isinstance(args[0], Facts) else None
    if first is None:
        return False  # such as 0 ** x, which is infinite at -1
    if name in ("rsqrt", "reciprocal", "log"):
        return first.least > 0
    if name == "sqrt":
        return first.least >= 0
    by = args[1] if len(args) > 1 else None
    if name == "pow":
        return isinstance(by, float | int) and by >= 0 and float(by).is_integer()
    if name == "div" and isinstance(by, Facts):
        return by.least > 0 or (by.value is not None and bool(by.value.all()))
    return name == "div" and all(scalars)


def _are_finite(scalars: Sequence[Any]) -> bool:
    return all(cmath.isfinite(scalar) for scalar in scalars)


def _blocked(
    name: str, args: Sequence[Any], kwargs: Any, inputs: list[Facts], shape: Shape
) -> torch.Tensor | None:
    """Where the result may be -inf."""
    if name == "masked_fill" and len(inputs) >= 2:
        mask, fill = inputs[1].value, args[2]
        fill = fill.value if isinstance(fill, Facts) else fill
        if inputs[0].blocked is None or mask is None or fill is None:
            return None
        if not float(fill) < math.inf:
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
    scalars = [a for a in (*args, *kwargs.values()) if isinstance(a, Number)]
    if not _are_finite(scalars):
        return None
    if name == "add" and not kwargs and all(f.blocked is not None for f in inputs):
        blocked = FINITE
        for fact in inputs:
            assert fact.blocked is not None, "asked above"  # noqa: S101
            blocked = blocked | fact.blocked
        return blocked.broadcast_to(shape)
    if not all(f.is_finite for f in inputs) or not inputs:
        return None
    return FINITE if _stays_finite(name, args, scalars) else None


def _hidden(
    name: str, args: Sequence[Any], kwargs: Any, shape: Shape
) -> torch.Tensor | None:
    """Where the result is -inf for certain: by a known mask, or by a term of a sum."""
    if kwargs:
        return None
    if name == "masked_fill" and len(args) == 3:
        name, args = "where", (args[1], args[2], args[0])
    if name == "where" and len(args) == 3 and isinstance(args[0], Facts):
        choice = args[0].value
        if choice is None:
            return None
        yes, no = (_is_hidden(operand) for operand in args[1:])
        return torch.where(choice, yes, no).broadcast_to(shape)
    if name == "add" and len(args) == 2:
        terms = [a for a in args if isinstance(a, Facts)]
        if len(terms) == 2 and all(f.blocked is not None for f in terms):  # never +inf
            return (_is_hidden(args[0]) | _is_hidden(args[1])).broadcast_to(shape)
    return None


def _is_hidden(operand: Any) -> torch.Tensor:
    if isinstance(operand, Facts):
        return FINITE if operand.hidden is None else operand.hidden
    return torch.tensor(operand == -math.inf)


def _silent(
    name: str, inputs: list[Facts], scalars: Sequence[Any], shape: Shape
) -> torch.Tensor | None:
    """Where a product is 0 for certain: where a factor is, and the others are finite."""
    if name != "mul" or not _are_finite(scalars) or not all(f.is_finite for f in inputs):
        return None
    masks = [f.silent for f in inputs if f.silent is not None]
    if not masks:
        return None
    found = FINITE
    for mask in masks:
        found = found | mask
    return found.broadcast_to(shape)


@rule("where")
def where(choice: Facts, *operands: Any, shape: Shape) -> Facts:
    """One operand itself, if the choice is known and the same everywhere."""
    known = choice.value
    if known is not None and len(operands) == 2 and bool(known.all() == known.any()):
        chosen = operands[0] if bool(known.all()) else operands[1]
        if isinstance(chosen, Facts) and chosen.shape == shape:
            return replace(chosen, value=None)
    return pointwise("where", (choice, *operands), {}, shape)


@rule("clone", "_to_copy", "alias", "contiguous", "detach", "lift_fresh_copy")
def same(x: Facts, *, shape: Shape, **_: Any) -> Facts:
    """The same numbers; `walk` drops what rounding to another dtype breaks."""
    return replace(x, value=None)


@rule("dropout")
def dropout(x: Facts, p: float, train: bool, *, shape: Shape) -> Facts:
    """The same numbers, outside training."""
    return unknown(shape, [x]) if train else replace(x, value=None)
