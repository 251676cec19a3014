"""Operations that move entries, merge, split or sum over dimensions."""

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import torch

from everyformer.checks.following.facts import FINITE, Dims, Facts, Shape, unknown
from everyformer.checks.following.hearing import Heard, Hearing, merged, renamed
from everyformer.checks.following.places import placed
from everyformer.checks.following.registry import (
    moves_together,
    rows_together,
    rule,
    tensors_of,
)


@rule("gather")
def gather(x: Facts, dim: int, index: Facts, *_: Any, shape: Shape, **__: Any) -> Facts:
    """Entries along one dimension; tokens stay along the others.

    A place that is known takes an entry from the same token, if tokens do not lie along
    `dim` and the other dimensions are taken whole.
    """
    found = data_movement(x, index, shape=shape)
    own = x.dim(dim)
    others = [k for k in range(len(shape)) if k != own]
    whole = all(shape[k] == x.shape[k] for k in others)
    if x.rows is None or own in x.rows or index.depends or not whole:
        return found
    return replace(found, rows=x.rows, means=x.means and not x.weighs)


@rule("index_select", "index", "roll", "flip", "repeat")
def data_movement(x: Facts, *args: Any, shape: Shape, **kwargs: Any) -> Facts:
    """Entries of x in another order: nothing is known of where they are.

    All of them are 0 at x = 0 if x is, wherever they come from.
    """
    inputs = [x, *tensors_of((args, tuple(kwargs.values())))]
    blocked = FINITE if x.is_finite else None
    affine = x.affine and not any(fact.depends for fact in inputs[1:])
    return replace(unknown(shape, inputs), blocked=blocked, zero=x.zero, affine=affine)


@rule("var", "std")
def variance(
    x: Facts,
    dims: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
    shape: Shape,
) -> Facts:
    """Finite, and 0 at 0, only if more entries than `correction` come together."""
    found = reduction(x, dims, keepdim, shape=shape)
    entries = math.prod(x.shape) // max(math.prod(shape), 1)
    if entries > (1 if correction is None else correction):
        return found
    return replace(found, zero=False, blocked=None)


@rule("mean", "sum")
def total(x: Facts, *args: Any, shape: Shape, **kwargs: Any) -> Facts:
    """A sum of entries, or their mean: affine where they are."""
    return replace(reduction(x, *args, shape=shape, **kwargs), affine=x.affine)


@rule("amax", "amin")
def reduction(
    x: Facts, dims: Any = None, keepdim: bool = False, *, shape: Shape, **_: Any
) -> Facts:
    """A symmetric function of the entries along some dimensions.

    The order of tokens that are summed does not matter, so other dimensions move as they
    did. A sum over tokens has weights 1 or 1/n, which no softmax made.
    """
    if dims is None or dims == []:
        dims = range(len(x.shape))
    if isinstance(dims, int):
        dims = [dims]
    gone = {x.dim(d) for d in dims} if x.shape else set[int]()  # a number stays itself
    kept = [d for d in range(len(x.shape)) if d not in gone]
    place = {d: (d if keepdim else k) for k, d in enumerate(kept)}
    moves = None if x.moves is None else frozenset(place[d] for d in x.moves - gone)
    some = math.prod(x.shape[d] for d in gone) > 0  # else a mean is 0 / 0
    return Facts(
        shape,
        x.depends,
        frozenset(place[d] for d in x.uniform - gone),
        moves=moves,
        zero=x.zero and some,
        heard=renamed(x.heard, place, shape),
        blocked=FINITE if x.is_finite and some else None,
        rows=None if x.rows is None else frozenset(place[d] for d in x.rows - gone),
        means=x.means and not x.weighs and not (x.rows or frozenset()) & gone,
        least=0.0 if x.least >= 0 else -math.inf,
    )


def _renamed(
    x: Facts,
    place: dict[int, int],
    shape: Shape,
    more: AbstractSet[int] = frozenset(),
    copies: AbstractSet[int] = frozenset(),
) -> Facts:
    """Facts of a tensor whose dimensions have new numbers; those left out are lost.

    If tokens moved or lay along one that is lost, where they are now is not known. Sums
    along it are lost too: a part of a row that sums to 1 has another sum.

    `more` are uniform, and `copies` copied, beside those that were.
    """

    def mapped(dims: Dims | None) -> Dims | None:
        """None if one of them is lost."""
        if dims is None or not dims <= place.keys():
            return None
        return frozenset(place[d] for d in dims)

    return Facts(
        shape,
        x.depends,
        frozenset({place[d] for d in x.uniform if d in place} | more),
        None if x.sums_to_one is None else place.get(x.sums_to_one),
        mapped(x.moves),
        x.zero,
        renamed(x.heard, place, shape),
        copied=frozenset({place[d] for d in x.copied if d in place} | copies),
        rows=mapped(x.rows),
        means=x.means,
        least=x.least,
        affine=x.affine,
    )


@rule("permute")
def permute(x: Facts, dims: Sequence[int], *, shape: Shape) -> Facts:
    """Dimensions in another order."""
    place = {x.dim(old): new for new, old in enumerate(dims)}
    return _with_masks(_renamed(x, place, shape), x, lambda mask: mask.permute(*dims))


def _with_masks(
    found: Facts, x: Facts, moved: Callable[[torch.Tensor], torch.Tensor]
) -> Facts:
    """Facts with the masks of x, moved as x is."""

    def of(mask: torch.Tensor | None) -> torch.Tensor | None:
        return None if mask is None else moved(mask.broadcast_to(x.shape))

    return replace(found, blocked=of(x.blocked), hidden=of(x.hidden), silent=of(x.silent))


@rule("transpose")
def transpose(x: Facts, first: int, second: int, *, shape: Shape) -> Facts:
    """Two dimensions exchanged."""
    dims = list(range(len(x.shape)))
    a, b = x.dim(first), x.dim(second)
    dims[a], dims[b] = b, a
    return permute(x, dims, shape=shape)


@rule("t")
def t(x: Facts, *, shape: Shape) -> Facts:
    """A matrix transposed."""
    return permute(x, list(reversed(range(len(x.shape)))), shape=shape)


@rule("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "unflatten", "flatten")
def view(x: Facts, *args: Any, shape: Shape, **__: Any) -> Facts:
    """Dimensions merged and split; a dimension keeps its facts where it stays whole.

    Both shapes list the same entries in the same order. Where the products of the leading
    sizes agree, so do the groups of indices; within a group all entries are equal if they
    are along each of its dimensions.
    """
    if any(isinstance(arg, torch.dtype) for arg in args) or 0 in x.shape:
        return unknown(shape, [x])
    place: dict[int, int] = {}
    more: set[int] = set()
    copies: set[int] = set()
    for old, new in matching_groups(x.shape, shape):
        olds = [d for d in old if x.shape[d] > 1]
        news = [d for d in new if shape[d] > 1]
        if len(olds) == len(news) == 1:
            place[olds[0]] = news[0]
        if all(d in x.uniform for d in olds):
            more |= set(news)
        if all(d in x.copied for d in olds):
            copies |= set(news)
    # Dimensions of size 1 never move.
    found = _renamed(x, place, shape, more, copies)
    return _with_masks(found, x, lambda mask: mask.reshape(shape))


def matching_groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """The finest groups of neighbouring dimensions with equal products.

    Example:
        >>> matching_groups((6, 8), (6, 2, 4))
        [([0], [0]), ([1], [1, 2])]
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [], []
        left = right = 1
        while not (olds or news) or left != right:
            if left <= right and i < len(old):
                olds.append(i)
                left, i = left * old[i], i + 1
            elif j < len(new):
                news.append(j)
                right, j = right * new[j], j + 1
            else:
                olds.append(i)
                left, i = left * old[i], i + 1
            if left == right and ((olds and news) or i == len(old) or j == len(new)):
                break
        groups.append((olds, news))
    return groups


@rule("expand")
def expand(x: Facts, *_: Any, shape: Shape, **__: Any) -> Facts:
    """Copies along new dimensions and those of size 1."""
    offset = len(shape) - len(x.shape)
    place = {d: d + offset for d in range(len(x.shape)) if x.shape[d] == shape[d + offset]}
    more = {d for d in range(len(shape)) if d < offset or x.shape[d - offset] == 1}
    found = _renamed(x, place, shape, copies=more)
    return _with_masks(found, x, lambda mask: mask.broadcast_to(shape))


@rule("select")
def select(x: Facts, dim: int, index: int, *, shape: Shape) -> Facts:
    """One entry along a dimension; a single token if they lie there, so these are lost."""
    own = x.dim(dim)
    kept = [d for d in range(len(x.shape)) if d != own]
    place = {d: k for k, d in enumerate(kept)}
    found = _renamed(x, place, shape)
    return _with_masks(found, x, lambda mask: mask.select(own, index))


@rule("slice")
def slice_(
    x: Facts,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    *,
    shape: Shape,
) -> Facts:
    """A part of a dimension: its tokens have other places now, so these are lost."""
    own = x.dim(dim)
    if shape == x.shape:
        return replace(x, value=None)
    place = {d: d for d in range(len(x.shape)) if d != own}
    more, copies = x.uniform & {own}, x.copied & {own}
    blocked = FINITE if x.is_finite else None
    return replace(_renamed(x, place, shape, more, copies), blocked=blocked)


@rule("split_with_sizes", "split", "chunk")
def split(x: Facts, sizes: Any, dim: int = 0, *, shape: Any) -> list[Facts]:
    """Parts of a dimension; `shape` holds the shape of each."""
    own, parts, start = x.dim(dim), list[Facts](), 0
    for one in shape:
        end = start + one[own]
        found = slice_(x, own, start, end, shape=one)
        part = (x, own, start, end)
        parts.append(placed(torch.ops.aten.slice.Tensor, part, {}, found))
        start = end
    return parts


@rule("cat")
def cat(parts: Sequence[Facts], dim: int = 0, *, shape: Shape) -> Facts:
    """Tensors one after the other; along `dim`, slices hear what those of the parts hear.

    Along the others the parts must agree, as in an operation on entries. Tokens that lie
    along `dim` have other places now, unless the other parts are empty, as a cache of keys
    is in the beginning.
    """
    own = dim % len(shape)
    given, parts = parts, [f for f in parts if 0 not in f.shape]
    if len(parts) == 1 and parts[0].shape == shape:
        return replace(parts[0], value=None)
    if not parts or any(len(f.shape) != len(shape) for f in parts):
        return unknown(shape, list(given))
    others = [replace(f, uniform=frozenset(f.uniform - {own}), value=None) for f in parts]
    moves = moves_together(others, len(shape))
    rows = rows_together(others, len(shape))
    masks = [[getattr(f, name) for f in parts] for name in ("blocked", "hidden", "silent")]
    blocked, hidden, silent = (_joined(one, parts, own) for one in masks)
    return Facts(
        shape,
        any(f.depends for f in parts),
        frozenset.intersection(*(f.uniform for f in others)) - {own},
        moves=None if moves is None or own in moves else moves,
        zero=all(f.zero for f in parts),
        heard=_heard_in_turn(parts, own, shape),
        blocked=blocked,
        hidden=hidden,
        silent=silent,
        rows=None if rows is None or own in rows else rows,
        means=all(f.means and not f.weighs for f in parts),
        least=min(f.least for f in parts),
        affine=all(f.affine for f in parts),
    )


def _joined(
    masks: Sequence[torch.Tensor | None], parts: Sequence[Facts], dim: int
) -> torch.Tensor | None:
    """Masks one after the other; None if one of them is not known."""
    found = [
        mask.broadcast_to(f.shape)
        for f, mask in zip(parts, masks, strict=True)
        if mask is not None
    ]
    return torch.cat(found, dim) if len(found) == len(masks) else None


def _heard_in_turn(parts: Sequence[Facts], dim: int, shape: Shape) -> Heard | None:
    """What slices along `dim` hear: those of the part that they come from.

    What all slices of a part along another dimension hear alike, only its slices do.
    """
    found: list[Hearing] = []
    start = 0
    for part in parts:
        if part.heard is None:
            return None
        size = part.shape[dim]
        for one in part.heard:
            alike = bool((one.by == one.by[:1]).all())
            if one.dim != dim and not alike:
                found.append(one)
                continue
            by = torch.zeros(shape[dim], one.by.shape[1], dtype=torch.bool)
            by[start : start + size] = one.by if one.dim == dim else one.by[:1]
            found.append(Hearing(dim, by))
        start += size
    return merged(found)
