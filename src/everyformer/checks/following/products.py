"""Products of matrices, softmax and attention.

The key rule is that of a weighted mean: if the weights sum to 1 along the keys, and the
values are the same for all keys, the result is that value, the same for all queries
(the induction step of Luo et al. 2022, Theorem 2). Softmax makes such weights, whatever is
added to its logits.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from everyformer.checks.following.facts import FINITE, Dims, Facts, Shape, unknown
from everyformer.checks.following.hearing import (
    normalised,
    open_pairs,
    product,
    renamed,
)
from everyformer.checks.following.pointwise import pointwise
from everyformer.checks.following.registry import (
    aligned,
    moves_together,
    rows_together,
    rule,
)
from everyformer.checks.following.sequences import repeated
from everyformer.checks.following.shapes import permute
from everyformer.papers import LUO2022, implements

SMALLEST = 2.0**-126
"""An epsilon that is 0 neither in float32 nor in float64."""


@rule("softmax", "_softmax", "_safe_softmax")
@implements(LUO2022, "Theorem 2")
def softmax(x: Facts, dim: int, *_: Any, shape: Shape, **__: Any) -> Facts:
    """Weights that sum to 1, provided that no row is blocked altogether.

    Along every dimension, `dim` too, a softmax of permuted numbers is permuted, and that of
    equal numbers equal. An entry hears all of its row that is not -inf for certain.
    """
    own = x.dim(dim)
    some_key = False
    if x.blocked is not None:
        open_ = ~x.blocked.broadcast_to(shape)
        some_key = bool(open_.any(dim=own).all())
    counts = open_pairs(x.hidden, shape) if own == len(shape) - 1 else None
    return Facts(
        shape,
        x.depends,
        x.uniform,
        own if some_key else None,
        x.moves,
        heard=normalised(x.heard, own, shape, counts),
        blocked=FINITE if some_key else None,
        rows=x.rows,
        means=x.means and not x.weighs and (some_key or own not in (x.rows or ())),
        silent=x.hidden if some_key else None,
    )


@rule("matmul", "mm", "bmm")
def matmul(a: Facts, b: Facts, *, shape: Shape) -> Facts:
    """Products of matrices: result[.., i, j] = sum_k a[.., i, k] b[.., k, j].

    Equal rows of a give equal rows. So do weights with sum 1, if b has equal rows that are
    finite: sum_k a_ik b_j = b_j, while 0 times infinity would not be a number.
    """
    if len(a.shape) < 2 or len(b.shape) < 2:
        return unknown(shape, [a, b])
    rank = len(shape)
    i, j = rank - 2, rank - 1
    row, key = len(a.shape) - 2, len(a.shape) - 1
    key_b, column = len(b.shape) - 2, len(b.shape) - 1
    uniform = {
        d
        for d in range(rank - 2)
        if all((own := aligned(f, d, rank)) is None or own in f.uniform for f in (a, b))
    }
    if row in a.uniform or (a.sums_to_one == key and key_b in b.uniform and b.is_finite):
        uniform.add(i)
    if column in b.uniform or (b.sums_to_one == key_b and key in a.uniform and a.is_finite):
        uniform.add(j)
    counts = open_pairs(a.silent, a.shape) if b.is_finite else None
    return Facts(
        shape,
        a.depends or b.depends,
        frozenset(uniform),
        moves=_product_moves(a, b, rank),
        zero=(a.zero and b.is_finite) or (b.zero and a.is_finite),
        heard=product((a.heard, a.shape), (b.heard, b.shape), shape, counts),
        blocked=FINITE if a.is_finite and b.is_finite else None,
        rows=_product_rows(a, b, rank),
        means=_adds_up_by_means(a, b),
        affine=_is_affine(a, b),
    )


def _is_affine(a: Facts, b: Facts) -> bool:
    """One factor is affine in the token v that all tokens are, and the other is fixed.

    Or weights with sum 1 meet values that are the same for all keys: the product is that
    value, however the weights depend on v.
    """
    if not (a.is_finite and b.is_finite):
        return False
    key, key_b = len(a.shape) - 1, len(b.shape) - 2
    if a.affine and b.affine and not (a.depends and b.depends):
        return True
    left = a.sums_to_one == key and key_b in b.uniform and b.affine
    return left or (b.sums_to_one == key_b and key in a.uniform and a.affine)


def _product_rows(a: Facts, b: Facts, rank: int) -> Dims | None:
    """Tokens of a along its rows, of b along its columns, of both along the batch."""
    if a.rows is None or b.rows is None:
        return None
    batch = rows_together([_batch(a), _batch(b)], rank - 2)
    assert batch is not None, "both are known"  # noqa: S101
    left = {rank - 2} if len(a.shape) - 2 in a.rows else set[int]()
    right = {rank - 1} if len(b.shape) - 1 in b.rows else set[int]()
    return frozenset(batch | left | right)


def _adds_up_by_means(a: Facts, b: Facts) -> bool:
    """Whether the sum over keys has weights of sum 1, if it is a sum over tokens."""
    if not (a.means and b.means) or a.rows is None or b.rows is None:
        return False
    key, key_b = len(a.shape) - 1, len(b.shape) - 2
    if key not in a.rows and key_b not in b.rows:
        return not (a.weighs or b.weighs)
    left = a.sums_to_one == key and key_b in b.rows and not b.weighs
    return left or (b.sums_to_one == key_b and key in a.rows and not a.weighs)


def _product_moves(a: Facts, b: Facts, rank: int) -> frozenset[int] | None:
    """Keys that move in one factor move in the other, or it has copies there.

    Then the sum has the same terms in another order.
    """
    if a.moves is None or b.moves is None:
        return None
    key, key_b = len(a.shape) - 1, len(b.shape) - 2
    if (key in a.moves) != (key_b in b.moves):
        fixed, own = (b, key_b) if key in a.moves else (a, key)
        if own not in fixed.copied:
            return None
    batch = moves_together([_batch(a), _batch(b)], rank - 2)
    if batch is None:
        return None
    moves = set(batch)
    if len(a.shape) - 2 in a.moves:
        moves.add(rank - 2)
    if len(b.shape) - 1 in b.moves:
        moves.add(rank - 1)
    return frozenset(moves)


def _batch(fact: Facts) -> Facts:
    """The facts of the dimensions before the matrices."""
    kept = range(len(fact.shape) - 2)
    moves = None if fact.moves is None else frozenset(fact.moves & set(kept))
    copied = frozenset(fact.copied & set(kept))
    rows = None if fact.rows is None else frozenset(fact.rows & set(kept))
    shape = fact.shape[:-2]
    return Facts(shape, fact.depends, copied, moves=moves, copied=copied, rows=rows)


@rule("addmm", "baddbmm")
def addmm(c: Facts, a: Facts, b: Facts, *, shape: Shape, **kwargs: Any) -> Facts:
    """alpha a b + beta c."""
    factors = [kwargs.pop(name, 1) for name in ("alpha", "beta")]
    if kwargs or not all(isinstance(f, float | int) for f in factors):
        return unknown(shape, [a, b, c])
    terms = [matmul(a, b, shape=shape), c]
    for k, factor in enumerate(factors):
        if factor != 1:
            terms[k] = pointwise("mul", (terms[k], factor), {}, terms[k].shape)
    return pointwise("add", tuple(terms), {}, shape)


@rule("linear")
def linear(x: Facts, W: Facts, b: Facts | None = None, *, shape: Shape) -> Facts:
    """x W^T + b, a product along the last dimension."""
    transposed = permute(W, [1, 0], shape=W.shape[::-1])
    product = matmul(x, transposed, shape=shape)
    return product if b is None else pointwise("add", (product, b), {}, shape)


@rule("scaled_dot_product_attention")
@implements(LUO2022, "Theorem 2")
def attention(
    q: Facts,
    k: Facts,
    v: Facts,
    attn_mask: Facts | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    shape: Shape,
) -> Facts:
    """softmax(scale q k^T + mask) v; a finite scale changes no fact of the logits.

    A causal mask goes by places: it tells queries and keys apart, whatever they are.
    Grouped heads share keys and values: each of these is there for some queries in a row.
    """
    inputs = [q, k, v] + ([] if attn_mask is None else [attn_mask])
    known = dropout_p == 0 and (scale is None or math.isfinite(scale))
    if not known or any(len(f.shape) < 2 + enable_gqa for f in inputs[:3]):
        return unknown(shape, inputs)
    if enable_gqa:
        heads = q.shape[-3]
        k, v = (repeated(f, len(f.shape) - 3, heads // f.shape[-3]) for f in (k, v))
    keys = k.shape[-2]
    scores = (*shape[:-1], keys)
    flipped = [*range(len(k.shape) - 2), len(k.shape) - 1, len(k.shape) - 2]
    transposed = permute(k, flipped, shape=(*k.shape[:-2], k.shape[-1], keys))
    logits = matmul(q, transposed, shape=scores)
    if attn_mask is not None:
        logits = pointwise("add", (logits, _additive(attn_mask)), {}, scores)
    if is_causal:
        queries = shape[-2]
        later = torch.ones(queries, keys, dtype=torch.bool).triu(1)
        blocked = None if logits.blocked is None else logits.blocked | later
        hidden = later if logits.hidden is None else logits.hidden | later
        pairs = {len(scores) - 1, len(scores) - 2}
        logits = replace(
            logits,
            blocked=blocked,
            hidden=hidden,
            uniform=frozenset(logits.uniform - pairs),
            copied=frozenset(logits.copied - pairs),
            moves=None,
        )
    return matmul(softmax(logits, -1, shape=scores), v, shape=shape)


def _additive(mask: Facts) -> Facts:
    """A mask as a term of the logits."""
    if mask.value is not None and mask.value.dtype == torch.bool:
        shut = ~mask.value
        return replace(mask, blocked=shut, hidden=shut, value=None, zero=False)
    return mask


@rule("layer_norm")
def layer_norm(
    x: Facts,
    normalised: Sequence[int],
    weight: Facts | None = None,
    bias: Facts | None = None,
    eps: float = 1e-5,
    *_: Any,
    shape: Shape,
) -> Facts:
    """(x - mean) / deviation over the last dimensions, times weight, plus bias.

    If tokens lie along one of these, they are added up with equal weights.
    """
    first = len(shape) - len(normalised)
    moves = x.moves
    if moves is None or any(d >= first for d in moves):
        moves = None
    plain = Facts(
        shape,
        x.depends,
        frozenset(d for d in x.uniform if d < first),
        moves=moves,
        zero=x.zero and eps >= SMALLEST,
        heard=renamed(x.heard, {d: d for d in range(first)}, shape),
        blocked=FINITE if x.is_finite and eps >= SMALLEST else None,
        rows=x.rows,
        means=x.means and not x.weighs and all(d < first for d in x.rows or ()),
    )
    for name, term in (("mul", weight), ("add", bias)):
        if term is not None:
            plain = pointwise(name, (plain, term), {}, shape)
    return plain


@rule("embedding")
def embedding(table: Facts, index: Facts, *_: Any, shape: Shape, **__: Any) -> Facts:
    """Rows of a table that does not depend on x: row number index[..] at [.., :]."""
    if table.depends:
        return unknown(shape, [table, index])
    return Facts(
        shape,
        index.depends,
        index.uniform,
        moves=index.moves,
        heard=index.heard,
        blocked=FINITE if table.is_finite else None,
        rows=index.rows,
        means=index.means and not index.weighs,
    )
