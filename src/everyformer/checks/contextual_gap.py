"""How far apart a map keeps the tokens of a finite set of sequences (Definition 5.1).

`contextual_mapping` asks of a constructed network whether all ids differ, exactly. Here any
map of sequences is measured: the id of a token is its whole output, and the gap is the
least distance of two ids that should differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.papers import YUN2020, implements

ROUNDING = 2**10
"""Distances of at most so many units of rounding of the largest output are collisions."""

ROWS = 512
"""Tokens that are compared with all others at a time, about."""


@dataclass(frozen=True)
class ClosePair:
    """Two tokens whose outputs are close.

    Attributes:
        first: Number of the first sequence in the set given, and of its token.
        second: The same for the second.
        distance_sampled: The largest difference of their outputs in a coordinate.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    distance_sampled: float

    def __str__(self) -> str:
        """The pair in words."""
        return (
            f"token {self.first[1]} of sequence {self.first[0]}, token {self.second[1]} of "
            f"sequence {self.second[0]}, {self.distance_sampled:.2g} apart"
        )


@dataclass(frozen=True)
class ContextualGap:
    """What was measured on a finite set of sequences.

    Attributes:
        within: The closest two tokens of one sequence; None if there are none to compare.
        across: The closest two tokens of different sequences; None for one sequence.
        rounding: Distances up to here are rounding: a collision.
        sequences: How many sequences there were.
    """

    within: ClosePair | None
    across: ClosePair | None
    rounding: float
    sequences: int

    @property
    def closest(self) -> ClosePair:
        """The closest pair of all."""
        pairs = [pair for pair in (self.within, self.across) if pair is not None]
        return min(pairs, key=lambda pair: pair.distance_sampled)

    @property
    def gap_sampled(self) -> float:
        """The least distance of two ids that should differ."""
        return self.closest.distance_sampled

    @property
    def separating(self) -> bool:
        """Whether all ids that should differ do, beyond rounding."""
        return self.gap_sampled > self.rounding

    def __str__(self) -> str:
        """The gap, and the witness of a collision."""
        if self.separating:
            return f"separating {self.sequences} sequences, gap {self.gap_sampled:.2g}"
        return f"not separating {self.sequences} sequences: {self.closest}"


def with_skips(mixers: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    """The stack x <- x + mixer(x), as the blocks of a Transformer have it."""

    def stack(x: Tensor) -> Tensor:
        for mixer in mixers:
            x = x + mixer(x)
        return x

    return stack


@implements(YUN2020, "Definition 5.1", "Section 6.1")
def contextual_gap(
    stack: Callable[[Tensor], Tensor],
    sequences: Float[Tensor, "count n d"],
    *,
    equivariant: bool = False,
    pairs: Literal["all", "one token"] = "all",
) -> ContextualGap:
    """The least distance of two outputs that a contextual mapping keeps apart.

        within  min over L, i != j          of |q(L)_i - q(L)_j|
        across  min over L != L', all i, j  of |q(L)_i - q(L')_j|

    with the largest difference of a coordinate as |.|. The pair-wise form of Section 6.1
    has only sequences L, L' that differ in one token.

    Args:
        stack: A module or function from (count, n, d) to (count, n, any size).
        sequences: The set, each sequence once; float64 tells rounding from a gap best.
        equivariant: Whether the stack commutes with permutations: then permutations of a
            sequence count as the same, and equal tokens of a sequence are not compared.
        pairs: Which pairs of sequences are compared.

    Raises:
        InputError: If a sequence is there twice, or there is nothing to compare.

    Example:
        >>> mean = lambda x: x + x.mean(1, keepdim=True)
        >>> two = torch.tensor([[[1.0], [0.0], [2.0]], [[1.0], [-1.0], [3.0]]])
        >>> print(contextual_gap(mean, two))
        not separating 2 sequences: token 0 of sequence 0, token 0 of sequence 1, 0 apart
    """
    _check(sequences, equivariant)
    count, n, _ = sequences.shape
    with torch.no_grad():
        outputs = stack(sequences)
    if outputs.dim() != 3 or tuple(outputs.shape[:2]) != (count, n):
        msg = (
            f"The stack maps {tuple(sequences.shape)} to {tuple(outputs.shape)}. It must "
            "give a vector for each token: (count, n, size)."
        )
        raise InputError(msg)
    if not outputs.isfinite().all():
        msg = "Outputs of the stack are infinite or NaN: no distances. Scale its weights."
        raise InputError(msg)
    apart = ~torch.eye(count, dtype=torch.bool)
    if pairs == "one token":
        apart = (sequences[:, None] != sequences).any(-1).sum(-1) == 1
        if not apart.any():
            msg = (
                "No two sequences differ in one token only, so the pair-wise form has "
                "nothing to compare. Add such pairs, or use pairs='all'."
            )
            raise InputError(msg)
    within = _closest_within(outputs, _distinct_tokens(sequences, equivariant))
    across = _closest_across(outputs, apart)
    if within is None and across is None:
        msg = (
            f"{count} sequences of {n} tokens leave nothing to compare. Give two "
            "sequences, or one of two tokens."
        )
        raise InputError(msg)
    unit = torch.finfo(outputs.dtype).eps * float(outputs.abs().max())
    return ContextualGap(within, across, ROUNDING * unit, count)


def _check(sequences: Tensor, equivariant: bool) -> None:
    if sequences.dim() != 3 or not sequences.is_floating_point():
        msg = (
            f"sequences has shape {tuple(sequences.shape)} and dtype {sequences.dtype}; "
            "give floating-point numbers, (count, n, d)."
        )
        raise InputError(msg)
    seen: dict[tuple[tuple[float, ...], ...], int] = {}
    for number, sequence in enumerate(sequences.tolist()):
        tokens = [tuple(token) for token in sequence]
        key = tuple(sorted(tokens) if equivariant else tokens)
        if key in seen:
            msg = (
                f"Sequences {seen[key]} and {number} are the same (up to order, for an "
                "equivariant stack), so their ids agree by necessity. Give each once."
            )
            raise InputError(msg)
        seen[key] = number


def _distinct_tokens(
    sequences: Float[Tensor, "count n d"], equivariant: bool
) -> Bool[Tensor, "count n n"]:
    """Which two tokens of a sequence should differ."""
    count, n, _ = sequences.shape
    if equivariant:
        return (sequences[:, :, None] != sequences[:, None]).any(-1)
    return (~torch.eye(n, dtype=torch.bool)).expand(count, n, n)


def _closest_within(
    outputs: Float[Tensor, "count n size"], counted: Bool[Tensor, "count n n"]
) -> ClosePair | None:
    """The closest two tokens of one sequence, of those that count."""
    if not counted.any():
        return None
    distance = torch.cdist(outputs, outputs, p=float("inf"))
    distance = distance.masked_fill(~counted, float("inf"))
    number = _place(distance.flatten(1).min(1).values)
    i, j = divmod(_place(distance[number].flatten()), outputs.shape[1])
    return ClosePair((number, i), (number, j), float(distance[number, i, j]))


def _closest_across(
    outputs: Float[Tensor, "count n size"], counted: Bool[Tensor, "count count"]
) -> ClosePair | None:
    """The closest two tokens of two sequences that count, some sequences at a time."""
    n, ids = outputs.shape[1], outputs.flatten(0, 1)
    best: ClosePair | None = None
    step = max(1, ROWS // n)
    for start in range(0, len(outputs), step):
        rows = counted[start : start + step]
        distance = torch.cdist(
            outputs[start : start + step].flatten(0, 1), ids, p=float("inf")
        )
        skipped = ~rows.repeat_interleave(n, 0).repeat_interleave(n, 1)
        distance = distance.masked_fill(skipped, float("inf"))
        least = float(distance.min())
        if least < (float("inf") if best is None else best.distance_sampled):
            row, column = divmod(_place(distance.flatten()), len(ids))
            first = divmod(start * n + row, n)
            best = ClosePair(first, divmod(column, n), least)
    return best


def _place(values: Float[Tensor, " m"]) -> int:
    """Where the smallest value is; the first of equals."""
    return int(values.argmin())
