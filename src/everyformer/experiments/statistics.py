"""Is one arm better than another? Two sources of noise, and both must agree.

Seeds: arms are paired by seed (same data order, same evaluation), and a one-sided t-test
looks at the S differences of their means. Examples: a bootstrap draws *clusters* of
examples (paragraphs, articles) with replacement, and its interval is that of the difference
of the seeds' means. The first asks whether another training would say the same, the second
whether another test set would.

Letters: A, B are scores (S, N) of two arms, D = A - B, e = mean D the effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from everyformer.errors import InputError

DRAWS = 10_000
LEVEL = 0.05
"""Of a test; intervals cover 1 - LEVEL."""

EQUAL_SHARE = 0.01
"""Two trained models agree in no more than this share of their continuous scores."""

CHUNK = 2_000_000
"""Numbers that a bootstrap draws at once."""


@dataclass(frozen=True)
class Difference:
    """What two arms say about e, the mean of A minus that of B.

    Attributes:
        effect_sampled: e.
        low_sampled: Lower end of the 95 % interval over clusters of examples.
        high_sampled: Upper end.
        p_greater: Of the paired t-test against e <= 0; None with one seed.
        p_less: Against e >= 0.
        seeds: S.
        seeds_error_sampled: Standard error of e over seeds; None with one seed.
        same: Whether so many single scores are equal that one arm may be the other.
    """

    effect_sampled: float
    low_sampled: float
    high_sampled: float
    p_greater: float | None
    p_less: float | None
    seeds: int
    seeds_error_sampled: float | None
    same: bool

    def least_effect(self, level: float) -> float | None:
        """The smallest e that would have been seen with this noise, in either direction.

        max(t_{1 - level, S - 1} s / sqrt(S), half the interval)
        """
        if self.seeds_error_sampled is None:
            return None
        quantile = float(special.stdtrit(self.seeds - 1, 1 - level))
        half = (self.high_sampled - self.low_sampled) / 2
        return max(quantile * self.seeds_error_sampled, half)


def difference(
    a: Float[np.ndarray, "seeds examples"],
    b: Float[np.ndarray, "seeds examples"],
    clusters: Int[np.ndarray, " examples"],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Difference:
    """Compare two arms whose rows are the same seeds and whose columns the same examples.

    Args:
        a: Scores of one arm, larger is better.
        b: Scores of the other.
        clusters: Which examples belong together; any numbers.
        draws: Of the bootstrap.
        seed: Of the bootstrap.

    Raises:
        InputError: If shapes differ, there is nothing to compare, or a score is not a
            number.
    """
    if a.shape != b.shape or a.shape[1:] != clusters.shape or not a.size:
        msg = (
            f"Scores of shapes {a.shape} and {b.shape} with {len(clusters)} cluster "
            "numbers cannot be paired. Give two arms the same seeds and examples, at least "
            "one."
        )
        raise InputError(msg)
    apart = a.astype(np.float64) - b.astype(np.float64)
    if not np.isfinite(apart).all():
        msg = "Some scores are not finite, so means say nothing. Run these cells again."
        raise InputError(msg)
    by_seed = apart.mean(axis=1)
    low, high = clustered_interval(apart.mean(axis=0), clusters, draws=draws, seed=seed)
    greater, less = paired_p(by_seed)
    count = len(by_seed)
    error = None if count < 2 else float(by_seed.std(ddof=1)) / count**0.5
    return Difference(
        float(by_seed.mean()), low, high, greater, less, count, error, same_scores(a, b)
    )


def paired_p(
    differences: Float[np.ndarray, " seeds"],
) -> tuple[float | None, float | None]:
    """One-sided p-values of the t-test, against "not greater" and against "not less".

    Differences that are all equal have no noise: p is 0 on their side, and 1 for both where
    they are 0.

    Example:
        >>> [round(p, 4) for p in paired_p(np.array([1.0, 2.0, 3.0]))]
        [0.0371, 0.9629]
    """
    if len(differences) < 2:
        return None, None
    if np.ptp(differences) == 0.0:
        sign = float(differences[0])
        return float(sign <= 0), float(sign >= 0)
    count = len(differences)
    t = float(differences.mean()) / (float(differences.std(ddof=1)) / count**0.5)
    return float(special.stdtr(count - 1, -t)), float(special.stdtr(count - 1, t))


def clustered_interval(
    values: Float[np.ndarray, " examples"],
    clusters: Int[np.ndarray, " examples"],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[float, float]:
    """The 95 % percentile interval of the mean when clusters are drawn with replacement.

    With cluster sums s_c and sizes m_c a draw of clusters gives sum s_c / sum m_c.
    """
    _, places = np.unique(clusters, return_inverse=True)
    sums = np.bincount(places, values)
    sizes = np.bincount(places).astype(np.float64)
    count = len(sums)
    generator = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    rows = max(1, CHUNK // count)
    for start in range(0, draws, rows):
        shape = (min(rows, draws - start), count)
        drawn = generator.integers(0, count, shape, dtype=np.int32)
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    ends = np.quantile(np.concatenate(means), [LEVEL / 2, 1 - LEVEL / 2])
    return float(ends[0]), float(ends[1])


def same_scores(
    a: Float[np.ndarray, "seeds examples"], b: Float[np.ndarray, "seeds examples"]
) -> bool:
    """Whether two arms look like one: too many of their scores are equal, bit for bit.

    Scores with few values (right or wrong) agree often; there only full agreement counts.
    """
    share = float((a == b).mean())
    continuous = 2 * len(np.unique(a)) > a.size
    return share > EQUAL_SHARE if continuous else share == 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the k-th smallest of m times m - k + 1, never falling.

    Example:
        >>> [round(p, 3) for p in holm([0.04, 0.01, 0.03])]
        [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
