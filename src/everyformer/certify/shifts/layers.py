"""Feed-forward layers after attention, one by one: where a token goes, and how exactly.

A token is a centre and a radius around it. The centre is what a float64 run has where that
run rounds nothing but its last sum, so it is a float64 number; in networks with rational
weights it is the exact state. The radius is the distance to the network in real arithmetic,
or to its float64 run.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from everyformer.certify.overflow import UNDERFLOW
from everyformer.certify.rounding import gamma, lowest_bits, sums_exactly
from everyformer.certify.shifts.context import UP, Mode
from everyformer.certify.shifts.piecewise import LayerFunction
from everyformer.certify.undecided import Undecided


@dataclass(frozen=True)
class Tokens:
    """Tokens of all representatives, in one row.

    Attributes:
        centre: Shape (count, d), float64 or exact rationals (object).
        radius: Bounds on the distance to it, shape (count, d).
        mode: The distance of what.
        lost: Tokens of a float64 run about which nothing is known from here on.
    """

    centre: np.ndarray
    radius: np.ndarray
    mode: Mode
    lost: np.ndarray

    @property
    def exact(self) -> bool:
        """True for rationals."""
        return self.centre.dtype == object

    def losing(self, where: np.ndarray) -> "Tokens":
        """The same, with more tokens lost."""
        radius = np.where(where[:, None], 0.0, self.radius)
        return replace(self, radius=radius, lost=self.lost | where)


def seen(
    direction: np.ndarray, tokens: Tokens
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """t = w^T z of every centre, how far the token's own may be, and t's rounding."""
    if tokens.exact:
        t = tokens.centre @ direction
        return t, np.zeros(len(t)), np.zeros(len(t))
    terms = tokens.centre * direction
    places = lowest_bits(tokens.centre) + lowest_bits(direction)
    exact = sums_exactly(terms, places)
    rounding = np.abs(terms).sum(axis=-1) * float(gamma(len(direction) + 2)) * UP
    rounding = np.where(exact, 0.0, rounding + UNDERFLOW)
    off = (tokens.radius @ np.abs(direction) + rounding) * UP
    return terms.sum(axis=-1), off, rounding


def run_layer(where: str, stage: str, function: LayerFunction, tokens: Tokens) -> Tokens:
    """One layer, every token on the piece that it lies on.

    Raises:
        Undecided: If the layer jumps, in a network of float64 weights.
    """
    if tokens.exact:
        return _run_exactly(function, tokens)
    if not all(function.is_continuous_at(k) for k in range(len(function.breaks))):
        raise Undecided(stage, f"{where} jumps, in a network of float64 weights")
    t, off, rounding = seen(np.array([float(v) for v in function.direction]), tokens)
    breaks = np.array([float(b) for b in function.breaks])
    if any(Fraction(b) != exact for b, exact in zip(breaks, function.breaks, strict=True)):
        raise Undecided(stage, f"{where} bends where no float64 number is")
    update, update_off = _update(function, t, np.searchsorted(breaks, t, side="right"))
    centre = tokens.centre + update
    # The pieces that the ball around t may touch; one too many does no harm.
    slack = off * UP + (np.abs(t) + np.abs(breaks).max(initial=0.0)) * 2.0**-50
    low = np.searchsorted(breaks, t - slack)
    high = np.searchsorted(breaks, t + slack, side="right")
    steepest = np.max([[abs(float(v)) for v in slope] for slope in function.slopes])
    update_off = update_off + steepest * UP * rounding[:, None]
    radius = (_grown(function, tokens.radius, low, high) + update_off) * UP
    if tokens.mode == "real":
        radius = (radius + residual(tokens.centre, update, centre)) * UP
    else:
        radius = radius + _run_rounding(stage, function, tokens, off)
    inexact = np.asarray((radius + tokens.radius != 0).any(axis=-1))[:, None]
    return replace(tokens, centre=centre, radius=radius + np.where(inexact, UNDERFLOW, 0.0))


def _run_exactly(function: LayerFunction, tokens: Tokens) -> Tokens:
    """One layer on exact states: no radius, jumps allowed."""
    t = tokens.centre @ np.array(function.direction, dtype=object)
    known: dict[Fraction, np.ndarray] = {}
    centre = tokens.centre.copy()
    for index, value in enumerate(t.tolist()):
        if value not in known:
            known[value] = np.array(function.value(Fraction(value)), dtype=object)
        centre[index] = centre[index] + known[value]
    return replace(tokens, centre=centre)


def _update(
    function: LayerFunction, t: np.ndarray, piece: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """psi(t) = a t + c in float64, and by how much it may be off."""
    a = np.array([[float(v) for v in vector] for vector in function.slopes])
    c = np.array([[float(v) for v in vector] for vector in function.offsets])
    fits = np.array(
        [
            [Fraction(float(v)) == v for v in (*slope, *offset)]
            for slope, offset in zip(function.slopes, function.offsets, strict=True)
        ]
    ).all(axis=-1)
    slope, offset = a[piece], c[piece]
    product = slope * t[:, None]
    terms = np.stack([product, offset], axis=-1)
    places = np.stack(
        [lowest_bits(slope) + lowest_bits(t)[:, None], lowest_bits(offset)], axis=-1
    )
    exact = sums_exactly(terms, places) & np.asarray(fits)[piece][:, None]
    rounding = np.abs(terms).sum(axis=-1) * float(gamma(6)) * UP
    return product + offset, np.where(exact, 0.0, rounding + UNDERFLOW)


def residual(z: np.ndarray, update: np.ndarray, total: np.ndarray) -> np.ndarray:
    """|z + update - total|, exactly (Knuth's TwoSum)."""
    back = total - z
    return np.abs((z - (total - back)) + (update - back))


def _grown(
    function: LayerFunction, radius: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """|I + a w^T| radius, the largest over the pieces low .. high that may be touched."""
    w = np.array(function.direction, dtype=object)
    grown = np.zeros_like(radius)
    for k, slope in enumerate(function.slopes):
        matrix = np.eye(len(w), dtype=object) + np.outer(np.array(slope, dtype=object), w)
        sizes = np.abs(matrix).astype(np.float64)
        touched = (low <= k) & (k <= high)
        here = (radius @ sizes.T) * UP
        grown = np.where(touched[:, None], np.maximum(grown, here), grown)
    return grown


def _run_rounding(
    stage: str, function: LayerFunction, tokens: Tokens, off: np.ndarray
) -> np.ndarray:
    """What a float64 run of the layer's ReLUs adds to the distance from the centre.

    Nothing where every ReLU, its product with W_2 and their sum are free of rounding; and
    nothing where the layer takes a coordinate, as it is, from itself.

    Raises:
        Undecided: If a product underflows, so that the sign of its sum is not known.
    """
    z = tokens.centre
    rows = np.array([[float(v) for v in row] for row, _, _ in function.units])
    biases = np.array([float(bias) for _, bias, _ in function.units])
    columns = np.array([[float(v) for v in column] for _, _, column in function.units])
    shift = np.array([float(v) for v in function.shift])
    used = (columns != 0).any(axis=-1)
    rows, biases, columns = rows[used], biases[used], columns[used]
    products = z[:, None, :] * rows  # [count, r, d]
    if ((np.abs(products) < UNDERFLOW) & (z[:, None, :] != 0) & (rows != 0)).any():
        raise Undecided(stage, "a product is below 2^-500: a float64 run may lose it")
    terms = np.concatenate(
        [products, np.broadcast_to(biases[:, None], (*products.shape[:2], 1))], axis=-1
    )
    places = np.concatenate(
        [
            lowest_bits(z)[:, None, :] + lowest_bits(rows),
            np.broadcast_to(lowest_bits(biases)[:, None], (*products.shape[:2], 1)),
        ],
        axis=-1,
    )
    hidden = np.maximum(terms.sum(axis=-1), 0.0)
    size = np.abs(terms).sum(axis=-1)
    certain = (
        terms.sum(axis=-1) + size * 2.0**-48 + off[:, None] * np.abs(rows).max(initial=0.0)
        <= 0
    )
    exact = sums_exactly(terms, places)
    exact &= (tokens.radius == 0).all(axis=-1)[:, None]
    out = hidden[..., None] * columns  # [count, r, d]
    out = np.concatenate([out, np.broadcast_to(shift, (len(z), 1, len(shift)))], axis=1)
    out_places = np.concatenate(
        [
            np.where(
                out[:, :-1] != 0,
                lowest_bits(hidden)[..., None] + lowest_bits(columns),
                1 << 20,
            ),
            np.broadcast_to(lowest_bits(shift), (len(z), 1, len(shift))),
        ],
        axis=1,
    )
    moved, moved_places = np.moveaxis(out, 1, -1), np.moveaxis(out_places, 1, -1)
    fine = np.asarray((certain | exact).all(axis=-1))[:, None]
    fine = fine & sums_exactly(moved, moved_places)
    negations = (np.abs(rows).sum(axis=-1) == 1) & (biases == 0)
    negations &= (rows * columns).sum(axis=-1) == -1
    negations &= np.abs(columns).sum(axis=-1) == 1
    cancels = (certain | negations).all(axis=-1) & ((~certain).sum(axis=-1) <= 1)
    cancels &= not shift.any()
    # A run adds the update to the state with one rounding, as the centre does; a state
    # that is off by a radius may round the other way.
    total = np.abs(out).sum(axis=1) + np.abs(z) + tokens.radius
    inexact = np.asarray((tokens.radius != 0).any(axis=-1))[:, None]
    idle = np.asarray(certain.all(axis=-1))[:, None] & (shift == 0)
    once = np.where(inexact & ~idle, total * 2.0**-51, 0.0)
    many = (total + size.sum(axis=-1)[:, None] * np.abs(columns).max(initial=0.0)) * float(
        gamma(len(rows) + len(shift) + 4)
    )
    many = many + UNDERFLOW
    return np.where(cancels[:, None], 0.0, np.where(fine, once, many * UP))
