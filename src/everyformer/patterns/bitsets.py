"""Sets of tokens as rows of bits, 64 to a word; compiled.

The bits beyond token n are set, so that the row of [n] is all ones. The shape hook of the
tests must not wrap what numba compiles: pyproject.toml leaves this module out.
"""

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def sets_of(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The rows of a part as sets: S^1."""
    n = len(indptr) - 1
    words = (n + 63) // 64
    sets = np.zeros((n, words), dtype=np.uint64)
    for k in range(n):
        for place in range(indptr[k], indptr[k + 1]):
            j = indices[place]
            sets[k, j // 64] |= np.uint64(1) << np.uint64(j % 64)
        for beyond in range(n, 64 * words):
            sets[k, words - 1] |= np.uint64(1) << np.uint64(beyond % 64)
    return sets


@numba.njit(cache=True, nogil=True)
def full_rows(sets: np.ndarray) -> int:
    """How many sets hold all tokens."""
    n, words = sets.shape
    full = 0
    for k in range(n):
        w = 0
        while w < words and sets[k, w] == ~np.uint64(0):
            w += 1
        full += w == words
    return full


@numba.njit(cache=True, nogil=True)
def hear(indptr: np.ndarray, indices: np.ndarray, old: np.ndarray, new: np.ndarray) -> None:
    """new_k = union of old_j over j in row k; no row is empty."""
    n, words = old.shape
    for k in range(n):
        first = indices[indptr[k]]
        for w in range(words):
            new[k, w] = old[first, w]
        for place in range(indptr[k] + 1, indptr[k + 1]):
            j = indices[place]
            for w in range(words):
                new[k, w] |= old[j, w]
