"""Operations along a sequence: sums up to here, padding, convolutions, repeated heads."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from everyformer.checks.following.facts import FINITE, Facts, Shape, unknown
from everyformer.checks.following.hearing import Heard, Hearing, merged, reached, renamed
from everyformer.checks.following.pointwise import pointwise
from everyformer.checks.following.registry import rule


@rule("cumsum")
def cumsum(x: Facts, dim: int, *, shape: Shape, **_: Any) -> Facts:
    """Entry i along `dim` is the sum of entries 1 .. i: it hears what they hear.

    Tokens that lie there are told apart by their places, and are added up with weights 1.
    """
    if not shape:
        return unknown(shape, [x])
    own = x.dim(dim)
    moves = None if x.moves is None or own in x.moves else x.moves
    along = own in (x.rows or ())
    return Facts(
        shape,
        x.depends,
        frozenset(x.uniform - {own}),
        copied=frozenset(x.copied - {own}),
        moves=moves,
        zero=x.zero,
        heard=_by_slices(x.heard, own, torch.ones(shape[own], shape[own]).tril() > 0),
        blocked=FINITE if x.is_finite else None,
        rows=x.rows,
        means=x.means and not x.weighs and not along,
        least=0.0 if x.least >= 0 else -math.inf,
        affine=x.affine,
    )


@rule("constant_pad_nd")
def pad(x: Facts, sizes: Sequence[int], value: float = 0.0, *, shape: Shape) -> Facts:
    """Numbers before and after, or, for sizes below 0, a part of a dimension.

    A number that is added hears nobody.
    """
    if not isinstance(value, float | int) or len(sizes) > 2 * len(shape):
        return unknown(shape, [x])
    befores = {len(shape) - 1 - k: sizes[2 * k] for k in range(len(sizes) // 2)}
    changed = {d for d in befores if befores[d] or shape[d] != x.shape[d]}
    moves = None if x.moves is None or x.moves & changed else x.moves
    rows = None if x.rows is None or x.rows & changed else x.rows
    heard = x.heard
    for d in changed:
        heard = _by_slices(heard, d, _shifted(shape[d], x.shape[d], befores[d]))
    if changed and not math.isfinite(value):
        return replace(unknown(shape, [x]), heard=heard)
    return Facts(
        shape,
        x.depends,
        frozenset(x.uniform - changed),
        copied=frozenset(x.copied - changed),
        moves=moves,
        zero=x.zero and value == 0,
        heard=heard,
        blocked=FINITE if x.is_finite else None,
        rows=rows,
        means=x.means and not x.weighs,
        least=min(x.least, float(value)),
        affine=x.affine,
    )


def _shifted(new: int, old: int, before: int) -> torch.Tensor:
    """Pairs (i, k), where slice i of the result is slice k = i - before."""
    return torch.arange(new)[:, None] - before == torch.arange(old)


@rule("convolution")
def convolution(
    x: Facts,
    W: Facts,
    bias: Facts | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    *,
    shape: Shape,
) -> Facts:
    """y[b, o, t] = bias_o + sum_{c, k} W[o, c, k] x[b, c, t stride - padding + k dilation].

    With one tap, no padding and stride 1 it is a linear map of each place.
    """
    inputs = [x, W] + ([] if bias is None else [bias])
    known = len(shape) == len(x.shape) == 3 and not transposed
    if not known or any(fact.depends for fact in inputs[1:]):
        return unknown(shape, inputs)
    (s,), (p,), (gap,) = stride, padding, dilation
    taps, n = W.shape[-1], x.shape[2]
    t, k = torch.arange(shape[2])[:, None, None], torch.arange(taps)[:, None]
    reads = (t * s - p + k * gap == torch.arange(n)).any(1)
    alone = taps == 1 and s == 1 and p == 0
    heard = renamed(_by_slices(x.heard, 2, reads), {0: 0, 2: 2}, shape)
    moves = x.moves if alone and x.moves is not None and 1 not in x.moves else None
    finite = x.is_finite and W.is_finite
    kept = {0, 2} if alone else {0}
    rows = x.rows if alone and x.rows is not None and 1 not in x.rows else None
    found = Facts(
        shape,
        x.depends,
        frozenset(x.uniform & kept),
        copied=frozenset(x.copied & kept),
        moves=moves,
        zero=x.zero and W.is_finite,
        heard=heard,
        blocked=FINITE if finite else None,
        rows=rows,
        means=rows is not None and x.means and not x.weighs,
        affine=x.affine,
    )
    if bias is None:
        return found
    finite = FINITE if bias.is_finite else None
    column = Facts((*bias.shape, 1), False, blocked=finite)  # the same at all places
    return pointwise("add", (found, column), {}, shape)


def _by_slices(heard: Heard | None, dim: int, made_of: torch.Tensor) -> Heard | None:
    """Of a result whose slice i along `dim` is made of slices k with made_of[i, k]."""
    if heard is None:
        return None
    found: list[Hearing] = []
    for one in heard:
        if one.dim == dim:
            found.append(Hearing(dim, reached(made_of, one.by)))
        else:
            found.append(one)
    return merged(found)


def repeated(x: Facts, dim: int, times: int) -> Facts:
    """Each slice along `dim` so many times in a row, as grouped heads are shared."""
    if times == 1:
        return x
    shape = (*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :])
    source = torch.arange(shape[dim])[:, None] // times == torch.arange(x.shape[dim])
    lost = x.moves is None or dim in x.moves or x.sums_to_one == dim
    rows = None if x.rows is None or dim in x.rows else x.rows

    def of(mask: torch.Tensor | None) -> torch.Tensor | None:
        if mask is None:
            return None
        return mask.broadcast_to(x.shape).repeat_interleave(times, dim)

    return replace(
        x,
        shape=shape,
        sums_to_one=None if x.sums_to_one == dim else x.sums_to_one,
        moves=None if lost else x.moves,
        heard=_by_slices(x.heard, dim, source),
        rows=rows,
        means=x.means and not x.weighs,
        blocked=of(x.blocked),
        hidden=of(x.hidden),
        silent=of(x.silent),
        value=None,
        kinds=None,
    )
