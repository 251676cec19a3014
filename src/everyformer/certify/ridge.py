"""Hidden units that look at one number: a piecewise linear function, exactly.

All units whose rows are one row w, or its negative, make the function

    psi(tau) = sum_k c_k ReLU(s_k tau + b_k),    tau = w . z,  s_k = 1 or -1,

of one number, which bends at tau = -s_k b_k: float64 numbers, as b_k is. Slopes and offsets
between the bends are exact: integers over a power of two.

A float64 run of a layer with r such units, in whatever order it adds, is off by at most

    sum_k |c_k| gamma_{w+2} (|w| . |z| + |b_k|)  +  gamma_{r+3} sum_k |c_k| ReLU(..)

and what underflow adds (`certify/overflow.py`).
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from everyformer.certify.overflow import UNDERFLOW
from everyformer.certify.rounding import PRECISION, gamma, lowest_bits
from everyformer.certify.undecided import Undecided

SLACK = 2.0**-40
"""More than a few thousand roundings of a float64 sum of numbers of one sign add."""

MAX_BITS = 4000


@dataclass(frozen=True)
class Whole:
    """Exact numbers as Python ints over one denominator."""

    numbers: np.ndarray
    unit: int


def whole(values: np.ndarray) -> Whole:
    """float64 numbers as integers over a power of two, exactly."""
    lowest = lowest_bits(values)
    used = lowest[values != 0]
    shift = max(0, -int(used.min())) if used.size else 0
    if shift > MAX_BITS:
        msg = "float64 numbers below 2^-4000"
        raise AssertionError(msg)
    mantissas, exponents = np.frexp(values)
    numbers = np.ldexp(mantissas, PRECISION).astype(np.int64).reshape(-1).tolist()
    places = (exponents - PRECISION + shift).reshape(-1).tolist()
    result = np.empty(values.shape, dtype=object)
    result.reshape(-1)[:] = [
        m << e if e >= 0 else m >> -e for m, e in zip(numbers, places, strict=True)
    ]
    return Whole(result, 1 << shift)


@dataclass(frozen=True)
class Ridge:
    """psi, and what float64 may add to it.

    Attributes:
        row: w, shape (w,).
        writes: The registers that are written, c of them.
        bends: Increasing float64 numbers, r of them.
        slopes: Of psi between bends, ints over `slope_unit`, shape (r + 1, c).
        offsets: The same, over `offset_unit`.
        slope_unit: A power of two.
        offset_unit: A power of two.
        sizes: Sums of |c_k| and of |c_k b_k| over all units, shape (2, c).
        active: Sums of gamma |c_k|, gamma |c_k| b_k and gamma |c_k b_k| over units that
            are active right of each bend, shape (3, r + 1, c); gamma is that of the layer.
        walk: Bound on the size of every partial sum over layers, shape (c,).
        forward: Whether all s_k are 1; only then is a float64 run followed.
    """

    row: np.ndarray
    writes: np.ndarray
    bends: np.ndarray
    slopes: np.ndarray
    offsets: np.ndarray
    slope_unit: int
    offset_unit: int
    sizes: np.ndarray
    active: np.ndarray
    walk: np.ndarray
    forward: bool

    @classmethod
    def of(
        cls,
        row: np.ndarray,
        signs: np.ndarray,
        biases: np.ndarray,
        columns: np.ndarray,
        layers: np.ndarray,
        units: int,
    ) -> "Ridge":
        """Collect units that look at one row.

        Args:
            row: w.
            signs: s_k.
            biases: b_k.
            columns: c_k, shape (r, w).
            layers: The layer that each unit belongs to.
            units: How many units each layer has.
        """
        order = np.argsort(-signs * biases, kind="stable")
        signs, biases, columns = signs[order], biases[order], columns[order]
        writes = np.flatnonzero(columns.any(axis=0))
        c = np.ascontiguousarray(columns[:, writes])
        exact_c, exact_b = whole(c), whole(biases)
        C, B = exact_c.numbers, exact_b.numbers[:, None]
        left = (signs < 0)[:, None]
        first_slope = np.where(left, -C, 0).sum(axis=0, keepdims=True)
        first_offset = np.where(left, C * B, 0).sum(axis=0, keepdims=True)
        rise = np.where(left, -C * B, C * B)
        shares = np.abs(c) * float(gamma(units + 3)) * (1 + SLACK)
        b = biases[:, None]
        parts = (shares, shares * b, shares * np.abs(b))
        zero = np.zeros((1, c.shape[1]))
        active = np.stack([np.concatenate([zero, p.cumsum(axis=0)]) for p in parts])
        return cls(
            row=row,
            writes=writes,
            bends=-signs * biases,
            slopes=np.concatenate([first_slope, C]).cumsum(axis=0),
            offsets=np.concatenate([first_offset, rise]).cumsum(axis=0),
            slope_unit=exact_c.unit,
            offset_unit=exact_c.unit * exact_b.unit,
            sizes=np.stack([np.abs(c).sum(axis=0), (np.abs(c) * np.abs(b)).sum(axis=0)]),
            active=active,
            walk=_walk(signs, biases, c, layers[order]),
            forward=bool((signs > 0).all()),
        )

    def pieces(self, tau: np.ndarray) -> np.ndarray:
        """The piece that each number lies in; at a bend, the one on its left."""
        return np.searchsorted(self.bends, tau, side="left")

    def flat(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Whether psi is constant on each interval, as one piece; False for nan."""
        first = np.searchsorted(self.bends, low, side="right")
        last = np.searchsorted(self.bends, high, side="left")
        level = np.asarray((self.slopes == 0).all(axis=-1), dtype=bool)
        return (low <= high) & (first == last) & level[last]

    def values(self, tau: list[Fraction]) -> list[list[Fraction]]:
        """psi, exactly, for each tau and written register.

        Raises:
            Undecided: If a number is not a float64 number.
        """
        near = np.array([float(t) for t in tau])
        if any(Fraction(float(a)) != t for a, t in zip(near, tau, strict=True)):
            raise Undecided("registers", "a key is not a float64 number")
        found: list[list[Fraction]] = []
        for t, piece in zip(tau, self.pieces(near), strict=True):
            slopes, offsets = self.slopes[piece], self.offsets[piece]
            found.append(
                [
                    Fraction(b, self.offset_unit)
                    + (t * Fraction(a, self.slope_unit) if a else 0)
                    for a, b in zip(slopes, offsets, strict=True)
                ]
            )
        return found

    @cached_property
    def at_bends(self) -> tuple[np.ndarray, int]:
        """Psi at every bend, exactly: integers of shape (r, c) over one denominator."""
        ratio = self.offset_unit // self.slope_unit
        exact = whole(self.bends)
        numbers = exact.numbers[:, None] * self.slopes[:-1] * ratio
        values = numbers + self.offsets[:-1] * exact.unit
        return values, exact.unit * self.offset_unit

    @property
    def range(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest values over all real numbers, rounded outward; or infinite."""
        bounded = np.asarray((self.slopes[[0, -1]] == 0).all(axis=0), dtype=bool)
        # Psi is continuous: between bends it lies between its values there.
        values, unit = self.at_bends
        last = self.offsets[-1:] * (unit // self.offset_unit)
        found = np.concatenate([values, last])
        low = [outward(Fraction(least, unit), -1) for least in found.min(axis=0)]
        high = [outward(Fraction(most, unit), 1) for most in found.max(axis=0)]
        return np.where(bounded, low, -np.inf), np.where(bounded, high, np.inf)

    def rounding(self, tau: np.ndarray, size: np.ndarray, width: int) -> np.ndarray:
        """How far a float64 run may be off at tau; shape (*tau.shape, c).

        Args:
            tau: Where.
            size: |w| . |z|, at least |tau|.
            width: How many registers there are.
        """
        if not self.forward:
            raise Undecided("registers", "units of one look-up look both ways")
        t, s = tau[..., None], size[..., None]
        share = float(gamma(width + 2)) * (1 + SLACK)
        hidden = share * (s * self.sizes[0] + self.sizes[1])
        G, GB, GB_abs = (part[self.pieces(tau)] for part in self.active)
        left = s * float(gamma(width + 2)) * G
        total = np.maximum(t * G + GB, 0.0) + SLACK * (s * G + GB_abs) + left
        return (hidden + total) * 1.001 + UNDERFLOW


def _walk(
    signs: np.ndarray, biases: np.ndarray, c: np.ndarray, layers: np.ndarray
) -> np.ndarray:
    """The sum over layers of the largest |psi| of each layer alone, or infinity.

    Of layers with few units; with many, the layer is the only one.
    """
    order = np.argsort(layers, kind="stable")
    numbers, counts = np.unique(layers, return_counts=True)
    if len(numbers) == 1:
        return np.zeros(c.shape[1])
    r = int(counts.max())
    starts = np.concatenate([[0], counts.cumsum()[:-1]])
    place = np.arange(len(layers)) - np.repeat(starts, counts)
    shape = (len(numbers), r)
    s, b = np.zeros(shape), np.zeros(shape)
    columns = np.zeros((*shape, c.shape[1]))
    row = np.repeat(np.arange(len(numbers)), counts)
    s[row, place], b[row, place] = signs[order], biases[order]
    columns[row, place] = c[order]
    largest = np.zeros((len(numbers), c.shape[1]))
    for k in range(r):
        tau = -s[:, k] * b[:, k]
        hidden = np.maximum(s * tau[:, None] + b, 0.0)  # [layers, r]
        size = np.abs((hidden[..., None] * columns).sum(axis=1))
        slack = (hidden[..., None] * np.abs(columns)).sum(axis=1) * SLACK
        largest = np.maximum(largest, size + slack)
    slopes = whole(columns).numbers.sum(axis=1)  # right of all bends, if all s_k are 1
    bounded = np.asarray((slopes == 0).all(axis=0), dtype=bool) & bool((s >= 0).all())
    return np.where(bounded, largest.sum(axis=0) * (1 + SLACK), np.inf)


def outward(value: Fraction, direction: int) -> float:
    """A float64 number that is not below (direction 1) or not above (-1) the value."""
    near = float(value)
    if (Fraction(near) - value) * direction >= 0:
        return near
    return float(np.nextafter(near, direction * np.inf))
