"""Which tokens each token attends to, as compressed rows (CSR)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int, Int32, Int64

from everyformer.errors import PatternError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_ENTRIES = 2**27
"""Connections that are still listed one by one: half a GiB, and some more to make them."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The sets A_k of one pattern, one after the other.

    Attributes:
        indptr: Row k is indices[indptr[k] : indptr[k + 1]]; n + 1 numbers.
        indices: The tokens heard, 0-based, ascending and unique within a row.
    """

    indptr: Int64[np.ndarray, " n_plus_1"]
    indices: Int32[np.ndarray, " connections"]

    def __post_init__(self) -> None:
        """Lock the arrays: rows are shared between parts, layers and checks."""
        self.indptr.setflags(write=False)
        self.indices.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rows):
            return NotImplemented
        return np.array_equal(self.indptr, other.indptr) and np.array_equal(
            self.indices, other.indices
        )

    def __hash__(self) -> int:
        return hash((self.indptr.tobytes(), self.indices.tobytes()))

    @property
    def n(self) -> int:
        """Number of tokens."""
        return len(self.indptr) - 1

    @property
    def counts(self) -> Int64[np.ndarray, " n"]:
        """|A_k| for every k."""
        return np.diff(self.indptr)

    def row(self, k: int) -> Int32[np.ndarray, " heard"]:
        """A_k, 0-based and ascending."""
        return self.indices[self.indptr[k] : self.indptr[k + 1]]

    def matrix(self) -> "csr_array":
        """Ones in row k at the tokens of A_k."""
        from scipy.sparse import csr_array  # slow to import

        ones = np.ones(len(self.indices), dtype=np.int8)
        return csr_array((ones, self.indices, self.indptr), shape=(self.n, self.n))

    def listeners(self) -> Int64[np.ndarray, " connections"]:
        """The token k of every entry of `indices`."""
        return np.repeat(np.arange(self.n), self.counts)

    @classmethod
    def of_pairs(
        cls,
        n: int,
        listeners: Int[np.ndarray, " pairs"],
        heard: Int[np.ndarray, " pairs"],
    ) -> "Rows":
        """Rows from pairs (k, j), k attends to j; in any order, repeated or not."""
        _check_entries(len(listeners))
        keys = np.unique(listeners.astype(np.int64) * n + heard)
        indptr = np.searchsorted(keys, np.arange(n + 1, dtype=np.int64) * n)
        return cls(indptr.astype(np.int64), (keys % n).astype(np.int32))

    @classmethod
    def progressions(
        cls,
        start: Int[np.ndarray, " n"],
        stop: Int[np.ndarray, " n"],
        step: int = 1,
    ) -> "Rows":
        """Row k is range(start[k], stop[k], step); none is empty."""
        counts = (stop - start + step - 1) // step
        _check_entries(int(counts.sum()))
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        place = np.arange(indptr[-1]) - np.repeat(indptr[:-1], counts)
        indices = np.repeat(start, counts) + step * place
        return cls(indptr, indices.astype(np.int32))


def _check_entries(count: int) -> None:
    if count > MOST_ENTRIES:
        msg = (
            f"{count:,} connections would have to be listed, more than {MOST_ENTRIES:,}. "
            "Use a sparser pattern or fewer tokens. Numbers of connections, and kernels "
            "that know the pattern, need no list."
        )
        raise PatternError(msg)
