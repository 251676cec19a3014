"""Where the tokens of rectangles lie: a lattice, or anywhere.

Most rectangles hold tokens at equal distances: strips of a window, residue classes,
segments. They are then read through a view of the tensor, and sums are written through one,
which takes a third of the time of an index that is looked up for each token.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from everyformer.ops.sparse_attention.products import product

MOST_ROUNDS = 16
"""Of sums over rows that overlap; with more, an index is as fast."""


class Lattice(NamedTuple):
    """Token first + i far + j near + k step is in place k of rectangle i inner + j.

    All of them are tokens; none is nobody.

    Attributes:
        first: The first token.
        shape: Rectangles: how many i and how many j; and the size of each.
        far: Tokens between two i.
        near: Tokens between two j.
        step: Tokens between two places.
        rounds: Every so many i share no token, so that sums can be written at once.
    """

    first: int
    shape: tuple[int, int, int]
    far: int
    near: int
    step: int
    rounds: int

    @property
    def bytes(self) -> int:
        """What is held to keep it."""
        return 0

    def tokens(self, device: torch.device) -> Int[Tensor, "g c"]:
        """One row for each rectangle."""
        gaps = zip((self.far, self.near, self.step), self.shape, strict=True)
        i, j, k = (gap * torch.arange(size, device=device) for gap, size in gaps)
        tokens = self.first + i[:, None, None] + j[:, None] + k
        return tokens.view(-1, self.shape[2])

    def _view(self, x: Float[Tensor, "p n d"]) -> Float[Tensor, "p i j k d"]:
        p, _, d = x.shape
        across, along, _ = x.stride()
        gaps = (along * gap for gap in (self.far, self.near, self.step))
        start = x.storage_offset() + self.first * along
        return x.as_strided((p, *self.shape, d), (across, *gaps, 1), start)

    def of(self, x: Float[Tensor, "p n d"]) -> Float[Tensor, "pg c d"]:
        """The rows of these tokens, one matrix for each pair and rectangle."""
        return self._view(x).reshape(-1, self.shape[2], x.shape[2])

    def put(self, x: Float[Tensor, "p n d"], rows: Float[Tensor, "pg c d"]) -> None:
        """Write rows of tokens that are all different."""
        view = self._view(x)
        view.copy_(rows.view(view.shape))

    def add(
        self, x: Float[Tensor, "p n d"], a: Tensor, b: Tensor, scale: float, *, fresh: bool
    ) -> None:
        """Add scale a b to the rows of these tokens, or write it where they are fresh."""
        view = self._view(x)
        rows = self._joined(view) if a.shape[2] > 1 else None
        if rows is not None:
            rows.baddbmm_(a, b, beta=0 if fresh else 1, alpha=scale)
            return
        terms = product(a, b, scale).view(view.shape)
        if fresh:
            view.copy_(terms)
            return
        for start in range(self.rounds):
            view[:, start :: self.rounds].add_(terms[:, start :: self.rounds])

    def _joined(self, view: Float[Tensor, "p i j k d"]) -> Float[Tensor, "pij k d"] | None:
        """With one axis of rectangles, for a product that is written where sums lie.

        Only if no row is in two and all are neighbours: into others a product takes longer
        than it saves.
        """
        p, i, j, k, d = view.shape
        if self.rounds > 1 or self.step > 1 or j > 1 or (p > 1 and i > 1):
            return None
        across, far, _, along, _ = view.stride()
        start = view.storage_offset()
        return view.as_strided((p * i, k, d), (far if p == 1 else across, along, 1), start)


class Scattered(NamedTuple):
    """Any tokens.

    Attributes:
        flat: The tokens of all rectangles.
        size: Tokens of each.
    """

    flat: Int[Tensor, " gc"]
    size: int

    @property
    def bytes(self) -> int:
        """What is held to keep it."""
        return self.flat.nbytes

    def tokens(self, device: torch.device) -> Int[Tensor, "g c"]:
        """One row for each rectangle."""
        return self.flat.view(-1, self.size).to(device)

    def of(self, x: Float[Tensor, "p n d"]) -> Float[Tensor, "pg c d"]:
        """The rows of these tokens, one matrix for each pair and rectangle."""
        return x.index_select(1, self.flat).view(-1, self.size, x.shape[2])

    def put(self, x: Float[Tensor, "p n d"], rows: Float[Tensor, "pg c d"]) -> None:
        """Write rows of tokens that are all different, but for nobody."""
        x.index_copy_(1, self.flat, rows.view(x.shape[0], -1, x.shape[2]))

    def add(
        self, x: Float[Tensor, "p n d"], a: Tensor, b: Tensor, scale: float, *, fresh: bool
    ) -> None:
        """Add scale a b to the rows of these tokens, or write it where they are fresh."""
        rows = product(a, b, scale)
        if fresh:
            self.put(x, rows)
            return
        p, n, d = x.shape
        # One axis of rows: for several, torch adds up row by row.
        start = n * torch.arange(p, device=x.device)
        index = self.flat if p == 1 else (start[:, None] + self.flat).flatten()
        x.view(p * n, d).index_add_(0, index, rows.view(-1, d))


Places = Lattice | Scattered


def places(tokens: Int[Tensor, "g c"], n: int, device: torch.device) -> Places:
    """A lattice where there is one of the n tokens; else all of them, on a device."""
    numbers = tokens.numpy()
    found = _lattice(numbers) if numbers.max() < n else None
    if found is not None:
        return found
    return Scattered(tokens.flatten().to(device), tokens.shape[1])


def _lattice(tokens: Int[np.ndarray, "g c"]) -> Lattice | None:
    g, c = tokens.shape
    firsts, first = tokens[:, 0], int(tokens[0, 0])
    step = int(tokens[0, 1]) - first if c > 1 else 1
    near = int(firsts[1]) - first if g > 1 else 1
    turns = np.flatnonzero(np.diff(firsts) != near)
    inner = int(turns[0]) + 1 if len(turns) else g
    outer = g // inner
    far = int(firsts[inner]) - first if outer > 1 else 1
    if min(step, near, far) < 1 or inner * outer != g:
        return None
    i, j, k = np.ogrid[:outer, :inner, :c]
    wanted = first + far * i + near * j + step * k
    if not np.array_equal(wanted.reshape(g, c), tokens):
        return None
    if inner > 1 and outer == 1 and near < step * c and not _different(wanted[0]):
        inner, outer, far, near = 1, g, near, 1  # what overlaps is counted by i
        wanted = wanted.reshape(outer, inner, c)
    for rounds in range(1, min(outer, MOST_ROUNDS) + 1):
        if _different(wanted[::rounds]):
            return Lattice(first, (outer, inner, c), far, near, step, rounds)
    return None


def _different(tokens: np.ndarray) -> bool:
    return len(np.unique(tokens)) == tokens.size
