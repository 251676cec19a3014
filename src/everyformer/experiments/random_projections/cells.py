"""`random-projections`: how often a Gaussian W_P brings two contexts of a set together.

Section 6.1 of Yun et al. 2020: X + X W_P with a random W_P maps contexts to numbers that
are "distinct with high probability", for a finite set of fixed contexts (footnote). Tokens
are numbers here, d = 1 and W_O = 1, so X is a row x of n numbers. The gap of W_P is

    min over contexts x != y of the set and positions k of |((x - y) (I + W_P))_k|.

Let the entries of W_P be independent and standard normal. Entry k of (x - y)(I + W_P) is
normal with standard deviation |x - y| and some mean; its density is at most
1 / (sqrt(2 pi) |x - y|), so it lies in (-g, g) with probability at most
sqrt(2/pi) g / |x - y|. Added up over positions and pairs:

    P(gap < g) <= n sqrt(2/pi) g sum over pairs of 1/|x - y|                   (union bound)

With g -> 0: every finite set is kept apart with probability 1. With the right side q: the
q-quantile of the gap is at least that g.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyformer.experiments.cell import Cell, Result, Size, measuring_cell
from everyformer.papers import YUN2020, implements

QUANTILE = 0.05
"""q: the probability with which a gap may lie below what is proved."""

KINDS = 4
"""Tokens are 0, 1, 2, 3."""

OUTWARD = 1 + 2.0**-40
"""More than the rounding of the sums below, all of whose terms are positive."""


@dataclass(frozen=True)
class Scale:
    """Lengths n, sizes of the set, and how many W_P are drawn."""

    lengths: tuple[int, ...]
    sizes: tuple[int, ...]
    draws: int


SCALES: dict[Size, Scale] = {
    "smoke": Scale((4,), (2, 8), 100),
    "small": Scale((8, 16), (2, 8, 32, 128, 512), 1000),
    "paper": Scale((8, 16, 32), (2, 8, 32, 128, 512, 2048), 1000),
}


def cells(size: Size, seeds: Sequence[int], changes: Mapping[str, Any]) -> list[Cell]:
    """Every length and size of the set."""
    scale = SCALES[size]
    return [
        _cell(n, count, scale.draws, seed)
        for seed in seeds
        for n in scale.lengths
        for count in scale.sizes
    ]


def _cell(n: int, count: int, draws: int, seed: int) -> Cell:
    labels: dict[str, str | int] = {"n": n, "contexts": count, "seed": seed}
    settings = {**labels, "draws": draws, "kinds": KINDS}
    return measuring_cell(labels, settings, lambda: measured(n, count, draws, seed))


def measured(n: int, count: int, draws: int, seed: int) -> Result:
    """The share of W_P whose gap is below what a share of 5% at most may be below."""
    rng = np.random.default_rng(seed)
    contexts = different_contexts(n, count, rng)
    bound = gap_quantile_bound(contexts, QUANTILE)
    found = np.array([gap(contexts, rng.standard_normal((n, n))) for _ in range(draws)])
    share = float((found < bound).mean())
    error = math.sqrt(max(share, 1 / draws) * (1 - share) / draws)
    more: dict[str, Any] = {
        "draws": draws,
        "ceiling": QUANTILE,
        "gap_quantile_bound": bound,
        "gap_quantile_sampled": float(np.quantile(found, QUANTILE)),
        "gap_median_sampled": float(np.median(found)),
        "collisions_sampled": int((found == 0).sum()),
    }
    return Result(share, error, True, more)


def different_contexts(n: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Different random sequences of n tokens, shape (count, n).

    Raises:
        ValueError: If there are not so many.
    """
    if count > KINDS**n:
        msg = (
            f"There are {KINDS**n:,} sequences of {n} tokens of {KINDS} kinds, fewer than "
            f"{count:,}. Use longer sequences."
        )
        raise ValueError(msg)
    found = np.empty((0, n), dtype=np.int64)
    while len(found) < count:
        drawn = np.concatenate([found, rng.integers(KINDS, size=(count, n))])
        _, first = np.unique(drawn, axis=0, return_index=True)
        found = drawn[np.sort(first)][:count]
    return found.astype(np.float64)


def gap(contexts: np.ndarray, W_P: np.ndarray) -> float:
    """The least distance of two contexts at one position after x (I + W_P)."""
    projected = contexts + contexts @ W_P  # [count, n]
    return float(np.diff(np.sort(projected, axis=0), axis=0).min())


@implements(YUN2020, "Section 6.1")
def gap_quantile_bound(contexts: np.ndarray, q: float) -> float:
    """A gap that a Gaussian W_P stays below with probability at most q, rounded down.

    The union bound of this module: q / (n sqrt(2/pi) sum of 1/|x - y|).
    """
    total = 0.0
    for k in range(1, len(contexts)):
        away = np.sqrt(((contexts[:k] - contexts[k]) ** 2).sum(axis=1))
        total += float((1 / away).sum())
    n = contexts.shape[1]
    return q / (n * math.sqrt(2 / math.pi) * total * OUTWARD)
