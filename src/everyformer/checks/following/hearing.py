"""Which tokens an entry of a tensor may depend on, for all weights."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Hearing:
    """Slice i along `dim` depends on token j only where by[i, j] is True."""

    dim: int
    by: torch.Tensor


Heard = tuple[Hearing, ...]
"""An entry depends on the tokens of its slices along all of these dimensions, at most."""


def everywhere(tokens: torch.Tensor, shape: Shape) -> Heard | None:
    """The same tokens in all entries; None for a number, which has no dimension."""
    return (Hearing(0, tokens.expand(shape[0], -1)),) if shape else None


def merged(hearings: Iterable[Hearing]) -> Heard:
    """One for each dimension."""
    found: dict[int, torch.Tensor] = {}
    for one in hearings:
        found[one.dim] = one.by | found[one.dim] if one.dim in found else one.by
    return tuple(Hearing(dim, by) for dim, by in sorted(found.items()))


def renamed(heard: Heard | None, place: Mapping[int, int], shape: Shape) -> Heard | None:
    """With new numbers of dimensions; of those left out, all slices are heard."""
    found: list[Hearing] = []
    for one in heard or ():
        if one.dim in place:
            found.append(Hearing(place[one.dim], one.by))
        elif (all_of_it := everywhere(one.by.any(0), shape)) is None:
            return None
        else:
            found += all_of_it
    return None if heard is None else merged(found)


def together(operands: Iterable[tuple[Heard | None, Shape]], shape: Shape) -> Heard | None:
    """Of an operation on entries, with broadcasting."""
    found: list[Hearing] = []
    for heard, own in operands:
        if heard is None:
            return None
        for one in heard:
            dim = one.dim + len(shape) - len(own)
            found.append(Hearing(dim, one.by.expand(shape[dim], -1)))
    return merged(found)


def product(
    a: tuple[Heard | None, Shape],
    b: tuple[Heard | None, Shape],
    shape: Shape,
    counts: torch.Tensor | None,
) -> Heard | None:
    """Of sum_k a[.., i, k] b[.., k, j], where a[.., i, k] is 0 unless counts[i, k]."""
    rank = len(shape)
    found: list[Hearing] = []
    for (heard, own), key in ((a, len(a[1]) - 1), (b, len(b[1]) - 2)):
        if heard is None:
            return None
        for one in heard:
            if one.dim != key:
                dim = one.dim + rank - len(own)
                found.append(Hearing(dim, one.by.expand(shape[dim], -1)))
            elif counts is None:
                found += everywhere(one.by.any(0), shape) or ()
            else:
                found.append(Hearing(rank - 2, reached(counts, one.by)))
    return merged(found)


def normalised(
    heard: Heard | None, own: int, shape: Shape, counts: torch.Tensor | None
) -> Heard | None:
    """Of a softmax along `own`: an entry depends on all of its row that counts."""
    if heard is None:
        return None
    others = [one for one in heard if one.dim != own]
    for one in heard:
        if one.dim == own and counts is not None:
            others.append(Hearing(own - 1, reached(counts, one.by)))
        elif one.dim == own:
            others += everywhere(one.by.any(0), shape) or ()
    return merged(others)


def open_pairs(closed: torch.Tensor | None, shape: Shape) -> torch.Tensor | None:
    """Pairs (i, k) of the last two dimensions that are not closed in all the others."""
    if closed is None or len(shape) < 2:
        return None
    return ~closed.broadcast_to(shape).reshape(-1, *shape[-2:]).all(0)


def reached(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Pairs (i, j) with some k in between."""
    return (first.double() @ second.double()) > 0


def receptive_fields(heard: Heard | None, n: int) -> torch.Tensor | None:
    """Which tokens each token of an output (1, n, d) depends on, [n, n]; or None."""
    if heard is None:
        return None
    fields = torch.zeros(n, n, dtype=torch.bool)
    for one in heard:
        fields = fields | (one.by if one.dim == 1 else one.by.any(0))
    return fields
