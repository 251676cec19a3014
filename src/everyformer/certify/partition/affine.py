"""Registers as affine functions of what varies, exactly, and how far they may be from them.

Each register of each data token is a sum over variables t_1 .. t_V, each in an interval,
plus a constant, in rationals. Beside it go two bounds: `radius`, how far it may be from
that sum in real arithmetic, and `error`, how far a float64 run may be from real arithmetic.

A hidden unit ReLU(a) with a >= 0 on all of the intervals is a; with a <= 0 it is 0. Where
a only just changes its sign (a read-in that was rounded), the smaller of both mistakes is
added to the radius. In float64 ReLU is 1-Lipschitz, so errors pass through.

Sums meet as many roundings as they have terms that are not zero: adding zeros is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from everyformer.certify.rounding import UNIT_ROUNDOFF, gamma
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, to_fractions

NEARLY = Fraction(1, 2**30)
"""Share of its range that a unit may be beyond its bend."""

Range = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Affine:
    """Numbers of n tokens as affine functions of variables.

    Attributes:
        slopes: Fractions, shape (n, w, V).
        constants: Fractions, shape (n, w).
        radius: Fractions, shape (n, w).
        error: Fractions, shape (n, w).
        ranges: Where each variable is.
    """

    slopes: np.ndarray
    constants: np.ndarray
    radius: np.ndarray
    error: np.ndarray
    ranges: tuple[Range, ...]

    @classmethod
    def of(
        cls, constants: np.ndarray, slopes: np.ndarray, ranges: Sequence[Range]
    ) -> "Affine":
        """Exact affine functions."""
        nothing = np.full(constants.shape, Fraction(0), dtype=object)
        return cls(slopes, constants, nothing, nothing, tuple(ranges))

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the greatest value, in real arithmetic."""
        middles = np.array([(a + b) / 2 for a, b in self.ranges], dtype=object)
        halves = np.array([(b - a) / 2 for a, b in self.ranges], dtype=object)
        centre = self.constants + self.slopes @ middles
        reach = np.abs(self.slopes) @ halves + self.radius
        return centre - reach, centre + reach

    def sizes(self) -> np.ndarray:
        """The largest absolute value, of a float64 run too."""
        low, high = self.ends()
        return np.maximum(np.abs(low), np.abs(high)) + self.error

    def mapped(self, matrix: np.ndarray, shift: np.ndarray) -> "Affine":
        """matrix @ registers + shift, a product of float64 numbers; any order of sums."""
        A, b = to_fractions(matrix), to_fractions(shift)
        size = np.abs(A)
        terms = (matrix != 0).sum(axis=1) + (shift != 0)
        rounds = np.array([gamma(int(k) + 1) for k in terms], dtype=object)
        seen = self.sizes() @ size.T + np.abs(b)
        return Affine(
            np.einsum("rw,nwv->nrv", A, self.slopes, optimize=False),
            self.constants @ A.T + b,
            self.radius @ size.T,
            self.error @ size.T + rounds * seen,
            self.ranges,
        )

    def plus(self, other: "Affine") -> "Affine":
        """The sum of two, as float64 has it; nothing rounds where one is 0."""
        sizes = self.sizes() + other.sizes()
        both = np.asarray((self.sizes() != 0) & (other.sizes() != 0), dtype=bool)
        return Affine(
            self.slopes + other.slopes,
            self.constants + other.constants,
            self.radius + other.radius,
            self.error + other.error + np.where(both, UNIT_ROUNDOFF * sizes, 0),
            self.ranges,
        )

    def with_variables(self, ranges: Sequence[Range]) -> "Affine":
        """The same with more variables, on which nothing depends yet."""
        n, w, _ = self.slopes.shape
        more = np.full((n, w, len(ranges)), Fraction(0), dtype=object)
        slopes = np.concatenate([self.slopes, more], axis=-1)
        return replace(self, slopes=slopes, ranges=(*self.ranges, *ranges))

    def rectified(self, stage: str) -> "Affine":
        """ReLU of every number.

        Raises:
            Undecided: If one changes its sign, by more than rounding explains.
        """
        low, high = self.ends()
        below, above = np.maximum(-low, 0), np.maximum(high, 0)
        off = np.asarray(above < below, dtype=bool)
        missed = np.where(off, above, below)
        bends = np.asarray(missed > NEARLY * (high - low), dtype=bool)
        if bends.any():
            token, unit = (int(k) + 1 for k in np.argwhere(bends)[0])
            why = f"hidden unit {unit} bends inside the domain, at token {token}"
            raise Undecided(stage, why)
        # Where t <= 0 for certain the unit is 0, whatever the radius was.
        radius = np.where(off, missed, self.radius + missed)
        return Affine(
            np.where(off[..., None], 0, self.slopes),
            np.where(off, 0, self.constants),
            radius,
            self.error,
            self.ranges,
        )


def feed_forward(stage: StageWeights, state: Affine) -> Affine:
    """A feed-forward stage of one layer, on data tokens.

    Raises:
        Undecided: If there are more layers, or a hidden unit bends inside the domain.
    """
    if stage.layers != 1:
        raise Undecided(stage.name, "several feed-forward layers follow each other")
    W_1, b_1, W_2, b_2 = (stage.arrays[k][0] for k in ("W_1", "b_1", "W_2", "b_2"))
    hidden = state.mapped(W_1, b_1).rectified(stage.name)
    return state.plus(hidden.mapped(W_2, b_2))


def check_prefix_unchanged(stage: StageWeights, prefix: np.ndarray) -> None:
    """See that a feed-forward stage does nothing to tokens before the sequence.

    Raises:
        Undecided: If it may.
    """
    W_1, b_1, W_2, b_2 = (stage.arrays[k][0] for k in ("W_1", "b_1", "W_2", "b_2"))
    used = np.asarray(W_2.any(axis=0))
    t = prefix @ W_1[used].T + b_1[used]
    size = np.abs(prefix) @ np.abs(W_1[used]).T + np.abs(b_1[used])
    slack = float(gamma(W_1.shape[1] + 2)) * 2
    read = (prefix[:, W_1[used].any(axis=0)] != 0).any()
    if (t + (slack * size if read else 0) > 0).any() or b_2.any():
        raise Undecided(stage.name, "it changes tokens that stand before the sequence")
