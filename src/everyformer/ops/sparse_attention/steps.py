"""Rectangles made ready to run, and kept for the next call: none depends on the inputs.

A pass is made of the same steps whenever its tensors have the same shapes. For short
sequences making them takes as long as running them, so those of the last shape are kept,
unless they need more memory than the tensors do.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from everyformer.ops.captured import outlasting
from everyformer.ops.sparse_attention.bounds import Bound, bound_of
from everyformer.ops.sparse_attention.pieces import Masked, Piece
from everyformer.ops.sparse_attention.places import Places, Scattered, places
from everyformer.ops.sparse_attention.rectangles import rectangles

CPU = torch.device("cpu")

BYTES, BYTES_PER_TOKEN = 2**20, 1024
"""That steps may take to be kept: a little, and as much as four heads of 64 in float32."""


class Step(NamedTuple):
    """Several rectangles of one shape.

    Attributes:
        queries: Where the rows lie.
        keys: Where the columns lie.
        bound: Hides pairs that do not count; None where all do. Several steps may share it.
        fresh: Whether no earlier step has any of these queries.
    """

    queries: Places
    keys: Places
    bound: Bound | None
    fresh: bool


class Steps:
    """The steps of some pieces.

    Attributes:
        pieces: What is walked.
        n: Number of tokens.
        large: Shapes of tensors for which they turned out to be too large to be kept.
    """

    def __init__(self, pieces: Sequence[Piece | Masked], n: int) -> None:
        """Nothing is made before it is asked for."""
        self.pieces, self.n = pieces, n
        self.large: set[Hashable] = set()
        self._kept: tuple[tuple[Any, ...], Sequence[Step], bool] | None = None

    @property
    def square(self) -> bool:
        """Whether one step has n x n pairs."""
        return any(isinstance(piece, Masked) for piece in self.pieces)

    def of(self, shape: Hashable, room: int, like: Tensor) -> tuple[Iterable[Step], bool]:
        """All pairs, each once, and whether token n, nobody, may be in any.

        At most `room` pairs at a time where possible; in a fixed order.

        Args:
            shape: Of the tensors; for equal ones the steps are equal.
            room: How many pairs.
            like: On the device, in the dtype.
        """
        wanted = room, like.device, like.dtype
        kept = self._kept  # another thread may replace it
        if shape not in self.large and (kept is None or kept[0] != wanted):
            steps = _little(_made(self.pieces, self.n, *wanted), self.n)
            if steps is None:
                self.large.add(shape)
            else:
                kept = wanted, steps, any(_has(step, self.n) for step in steps)
                self._kept = kept
        if kept is None or shape in self.large:
            return (step for step, _ in _made(self.pieces, self.n, *wanted)), True
        return outlasting(kept[1], like), kept[2]


def _little(made: Iterator[tuple[Step, int]], n: int) -> Sequence[Step] | None:
    """All steps if they are little in all."""
    kept: list[Step] = []
    size = 0
    for step, more in made:
        size += more
        if size > BYTES + BYTES_PER_TOKEN * n:
            return None
        kept.append(step)
    return kept


def _made(
    pieces: Sequence[Piece | Masked],
    n: int,
    room: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[tuple[Step, int]]:
    """Every step, and the bytes that are held to keep it beside those before it.

    Made on the CPU: a GPU would be waited for at each look at a number.
    """
    seen = np.zeros(n + 1, dtype=bool)
    hidden, bound = None, None
    for found in rectangles(pieces, n, room, CPU):
        more = 0
        if found.hidden is not hidden:
            hidden, bound = found.hidden, bound_of(found.hidden, dtype, device)
            more = 0 if bound is None else bound.most.nbytes
        queries, keys = (places(x, n, device) for x in found[:2])
        step = Step(queries, keys, bound, _fresh(found.queries, seen))
        yield step, more + queries.bytes + keys.bytes


def _has(step: Step, token: int) -> bool:
    """Whether a token that no lattice holds is in a step."""
    both = (step.queries, step.keys)
    return any(isinstance(x, Scattered) and bool((x.flat == token).any()) for x in both)


def _fresh(queries: Int[Tensor, "g r"], seen: Bool[np.ndarray, " n"]) -> bool:
    """Whether none was seen; now they are."""
    rows = queries.numpy()
    fresh = not seen[rows].any()
    seen[rows] = True
    seen[-1] = False  # nobody
    return fresh
