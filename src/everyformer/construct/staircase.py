"""Staircases: the one shape of feed-forward layer that averaging attention needs.

For thresholds theta_1 < ... < theta_L and values v_0 .. v_L,

    stair(t) = v_0 + sum_l (v_l - v_{l-1}) [ ReLU((t - theta_l)/rho + 1/2)
                                             - ReLU((t - theta_l)/rho - 1/2) ]

Each bracket is 0 left of the ramp [theta_l - rho/2, theta_l + rho/2], 1 right of it, and
linear on it. So off the ramps the sum telescopes to the table of values. *Hull property*:
where ramps do not overlap, stair(t) lies between two neighbouring values, for every real t.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.errors import GridError
from everyformer.model.stacks import FeedForwardStack


@dataclass(frozen=True)
class Layout:
    """Registers by name.

    Attributes:
        names: The registers, in order.

    Example:
        >>> Layout(("data", "A", "C")).vector(A=1, C=4).tolist()
        [0.0, 1.0, 4.0]
    """

    names: tuple[str, ...]

    @property
    def width(self) -> int:
        """How many registers."""
        return len(self.names)

    def vector(self, **entries: int | float) -> np.ndarray:
        """A vector with the given entries, 0 elsewhere."""
        result = np.zeros(self.width)
        for name, value in entries.items():
            result[self.names.index(name)] = value
        return result

    def rows(self, *names: str) -> np.ndarray:
        """Unit vectors of the named registers, as rows."""
        return np.stack([self.vector(**{name: 1.0}) for name in names])


@dataclass(frozen=True)
class Units:
    """Hidden units of a feed-forward layer with ReLU.

    Attributes:
        W_1: One row for each unit, shape (r, w).
        b_1: Shape (r,).
        W_2: One row for each unit, what it writes, shape (r, w).
        b_2: Shape (w,).
    """

    W_1: np.ndarray
    b_1: np.ndarray
    W_2: np.ndarray
    b_2: np.ndarray

    @classmethod
    def together(cls, parts: Iterable["Units"]) -> "Units":
        """The units of several functions, side by side."""
        held = list(parts)
        return cls(
            np.concatenate([part.W_1 for part in held]),
            np.concatenate([part.b_1 for part in held]),
            np.concatenate([part.W_2 for part in held]),
            sum((part.b_2 for part in held), start=np.zeros(held[0].b_2.shape)),
        )

    def layers(self, d_ff: int | None = None) -> FeedForwardStack:
        """The units as one layer, or as layers of d_ff units one after the other.

        Both compute the same function, if no unit writes what another one reads. The
        constant b_2 is added by the first layer; the last is filled up with units 0.
        """
        r, w = self.W_1.shape
        size = max(1, r) if d_ff is None else d_ff
        count = max(1, -(-r // size))
        missing = count * size - r
        W_1 = np.concatenate([self.W_1, np.zeros((missing, w))]).reshape(count, size, w)
        W_2 = np.concatenate([self.W_2, np.zeros((missing, w))]).reshape(count, size, w)
        b_2 = np.zeros((count, w))
        b_2[0] = self.b_2
        return FeedForwardStack(
            W_1=W_1,
            b_1=np.concatenate([self.b_1, np.zeros(missing)]).reshape(count, size),
            W_2=np.ascontiguousarray(np.swapaxes(W_2, 1, 2)),
            b_2=b_2,
        )


def staircase(
    reads: np.ndarray,
    writes: np.ndarray,
    thresholds: np.ndarray,
    values: np.ndarray,
    ramp: Fraction,
) -> Units:
    """stair(t) for t = reads . z, added to the registers `writes`: two units a threshold.

    Args:
        reads: What is read, shape (w,).
        writes: The registers that values are written to, as rows, shape (c, w).
        thresholds: theta_1 .. theta_L, increasing.
        values: v_0 .. v_L, shape (L + 1, c).
        ramp: rho, a power of two, so that 1/rho multiplies without rounding.

    Raises:
        ValueError: If ramps overlap, or values and thresholds do not fit.

    Example:
        >>> units = staircase(np.ones(1), np.ones((1, 1)), np.array([0.5]),
        ...     np.array([[3.0], [7.0]]), Fraction(1, 4))
        >>> units.W_1.tolist(), units.b_1.tolist(), units.W_2.tolist(), units.b_2.tolist()
        ([[4.0], [4.0]], [-1.5, -2.5], [[4.0], [-4.0]], [3.0])
    """
    if len(values) != len(thresholds) + 1:
        msg = f"{len(thresholds)} thresholds separate {len(thresholds) + 1} values, "
        raise ValueError(f"{msg}but {len(values)} are given.")
    if (np.diff(thresholds) < float(ramp)).any():
        msg = f"Thresholds are nearer than the ramp width {float(ramp):g}: ramps overlap."
        raise ValueError(f"{msg} Use a narrower ramp.")
    steps = np.diff(values, axis=0) @ writes  # [L, w]
    return _steps(reads, thresholds, steps, float(1 / ramp), values[0] @ writes)


def _steps(
    reads: np.ndarray,
    thresholds: np.ndarray,
    steps: np.ndarray,
    sharp: float,
    b_2: np.ndarray,
) -> Units:
    """b_2 plus the brackets of all thresholds, each times its step; sharp = 1/rho."""
    starts = -thresholds * sharp
    return Units(
        W_1=np.broadcast_to(reads * sharp, (2 * len(starts), len(reads))),
        b_1=np.stack([starts + 0.5, starts - 0.5], axis=-1).reshape(-1),
        W_2=np.stack([steps, -steps], axis=1).reshape(-1, len(reads)),
        b_2=b_2,
    )


def well(
    reads: np.ndarray,
    writes: np.ndarray,
    ends: tuple[float, float],
    height: float,
    ramp: Fraction,
) -> Units:
    """0 for t = reads . z between two ends, `height` beyond rho outside them.

    All four units are 0 between the ends, so nothing cancels there.

    Args:
        reads: What is read, shape (w,).
        writes: The register that is written, as a row, shape (1, w).
        ends: Where the ramps begin, on the outside.
        height: The value outside.
        ramp: rho, a power of two.
    """
    sharp = float(1 / ramp)
    signs = np.array([-1.0, -1.0, 1.0, 1.0])
    low, high = (end * sharp for end in ends)
    steps = np.array([[height], [-height]]) * writes  # [2, w]
    return Units(
        W_1=signs[:, None] * reads * sharp,
        b_1=np.array([low, low - 1, -high, -high - 1]),
        W_2=np.concatenate([steps, steps]),
        b_2=np.zeros(len(reads)),
    )


def ending_at_zero(
    units: Units, reads: np.ndarray, writes: np.ndarray, after: int, pairs: int
) -> Units:
    """A look-up that is exactly 0 beyond its last key, in real arithmetic.

    Steps are rounded to float64, so their sum is not exactly 0 behind the last one. It is a
    sum of few float64 numbers, which as many more steps take back, between integers behind
    `after`.

    Args:
        units: The look-up of integers.
        reads: Its key.
        writes: The registers that it writes, as rows.
        after: Its largest key.
        pairs: How many steps there are to take.

    Raises:
        GridError: If more are needed.
    """
    left = [units_end(units, column) for column in (writes != 0).argmax(axis=1).tolist()]
    steps = np.zeros((pairs, len(writes)))
    for m in range(pairs):
        steps[m] = [-float(rest) for rest in left]
        left = [
            rest + Fraction(float(step)) for rest, step in zip(left, steps[m], strict=True)
        ]
    if any(left):
        msg = (
            f"The values of f are so different in size that {pairs} steps do not bring a "
            "sum of them back to 0, as everywhere=True needs. Round f's values."
        )
        raise GridError(msg)
    between = after + np.arange(1, pairs + 1) - 0.5
    more = _steps(reads, between, steps @ writes, 4.0, np.zeros(len(reads)))
    return Units.together([units, more])


def units_end(units: Units, register: int) -> Fraction:
    """What units write to a register for a large key: b_2 + sum W_2 b_1, slopes being 0."""
    total = Fraction(float(units.b_2[register]))
    columns = units.W_2[:, register]
    used = np.flatnonzero(columns)
    for weight, bias in zip(columns[used].tolist(), units.b_1[used].tolist(), strict=True):
        total += Fraction(weight) * Fraction(bias)
    return total


def lookup(
    reads: np.ndarray,
    writes: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    ramp: Fraction = Fraction(1, 4),
) -> Units:
    """The value of a key that is an integer: a staircase with thresholds between keys.

    Keys are integers, thresholds lie midway between neighbours: with ramp 1/4 the value is
    right for every error of the key up to 3/8.

    Args:
        reads: The key is reads . z.
        writes: The registers that values are written to, as rows.
        keys: Integers, increasing.
        values: Shape (len(keys), c).
        ramp: rho.
    """
    middles = keys[:-1] / 2 + keys[1:] / 2
    return staircase(reads, writes, middles, values, ramp)
