"""Declarations held against the function itself, at points where no grid looks.

A bound from `lipschitz=`, `modulus=` or `equivariant=` is worth what the declaration is
worth. So before one is used, f is evaluated at pairs of points of six families, 2,048 of
each, with distances from 2^-30 of the domain up to all of it:

    inside      a random point, and one at a random distance in all entries at once
    one entry   the same, with one entry of one token moved
    borders     a corner, edge or face of the domain, and a point at a random distance
    far apart   two points of corners, edges, faces and the interior
    from a centre   the centre of a cell, and a point, face or corner of that cell
    in a cell   two points of a cell, on either side of its border too

The steepest pairs are then halved again and again: of the two halves of a segment one is at
least as steep. What this finds is a counterexample; that it finds none proves nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.errors import TargetError
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

PAIRS = 2048
"""Pairs of each family."""

CLOSEST = 30
"""The smallest distance is 2^-30 of the domain."""

STEEPEST = 256
"""Pairs that are halved."""

ROUNDING = 2.0**-40
"""Share of the largest |f| by which float64 may be off before it counts: 4,096 ulp."""

INPUT_ROUNDING = 2.0**-48
"""Share of its size by which an input may be off: 16 ulp."""

REORDERING = 2.0**-30
"""The same for f of permuted tokens: sums are added up in another order."""

ORDERS = 12_288
"""Sequences that are permuted."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of sequences, (count, n, d) each, with f at both."""

    x: np.ndarray
    y: np.ndarray
    f_x: np.ndarray
    f_y: np.ndarray

    @classmethod
    def of(cls, target: Target, x: np.ndarray, y: np.ndarray) -> "Pairs":
        """Evaluate f at both ends of the pairs whose ends differ."""
        apart = np.isfinite(_distance(x, y)) & (x != y).any(axis=(1, 2))
        x, y = x[apart], y[apart]
        values = target(np.concatenate([x, y]))
        return cls(x, y, values[: len(x)], values[len(x) :])

    def __getitem__(self, chosen: np.ndarray) -> "Pairs":
        """Some of the pairs."""
        return Pairs(self.x[chosen], self.y[chosen], self.f_x[chosen], self.f_y[chosen])

    @property
    def distances(self) -> np.ndarray:
        """max|X - Y|, and 16 ulp of X and Y: f may round its input before all else."""
        sizes = np.maximum(np.abs(self.x), np.abs(self.y)).max(axis=(1, 2))
        return _distance(self.x, self.y) * (1 + 2.0**-50) + sizes * INPUT_ROUNDING

    @property
    def gaps(self) -> np.ndarray:
        """max|f(X) - f(Y)|."""
        return _distance(self.f_x, self.f_y)

    @property
    def largest(self) -> float:
        """The largest |f|."""
        both = (np.abs(self.f_x).max(initial=0.0), np.abs(self.f_y).max(initial=0.0))
        return float(max(both))


def check_declarations(target: Target, cells: int) -> None:
    """Look for points that contradict what a target declares of itself.

    Args:
        target: f, with a declared modulus or Lipschitz constant, equivariant or not.
        cells: K of the grid on which the declaration is to be used.

    Raises:
        TargetError: Showing the two points and the numbers.
    """
    if target.lipschitz is not None or target.modulus is not None:
        _check_modulus(target, Grid(cells, target.seq_len, target.domain))
    if target.equivariant and target.seq_len > 1:
        _check_equivariance(target)


def _check_modulus(target: Target, grid: Grid) -> None:
    rng = np.random.default_rng(0)
    ends = [np.concatenate(side) for side in zip(*_families(grid, rng), strict=True)]
    pairs = Pairs.of(target, *ends)
    noise = pairs.largest * ROUNDING
    _judge(target, pairs, noise)
    steepest = np.argsort(-_steepness(target, pairs))[:STEEPEST]
    pairs = pairs[steepest]
    for _ in range(CLOSEST):
        pairs = _halved(target, pairs)
        if len(pairs.x):
            _judge(target, pairs, noise)


def _allowed(target: Target, distances: np.ndarray) -> np.ndarray:
    """omega at distances, as declared, rounded up."""
    if target.lipschitz is not None:
        L = float(min(target.lipschitz, Fraction(2**1000))) * (1 + 2.0**-50)
        with np.errstate(over="ignore"):
            return L * distances
    omegas = [target.modulus_of_continuity(float(r)) or Fraction(0) for r in distances]
    return np.array([float(omega) for omega in omegas])


def _steepness(target: Target, pairs: Pairs) -> np.ndarray:
    """max|f(X) - f(Y)| as a share of what is allowed."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.nan_to_num(pairs.gaps / _allowed(target, pairs.distances), nan=0.0)


def _judge(target: Target, pairs: Pairs, noise: float) -> None:
    allowed = _allowed(target, pairs.distances)
    with np.errstate(over="ignore"):
        excess = pairs.gaps - (allowed * (1 + ROUNDING) + noise)
    if not (excess > 0).any():
        return
    worst = int(np.argmax(excess))
    one = pairs[np.array([worst])]
    place = np.unravel_index(int(np.abs(one.f_x - one.f_y).argmax()), one.f_x.shape)
    entry = [int(k) for k in place[1:]]
    declared = "a modulus of continuity"
    if target.lipschitz is not None:
        declared = f"max|f(X) - f(Y)| <= {float(target.lipschitz):.6g} max|X - Y|"
    at_x, at_y = float(one.f_x[place]), float(one.f_y[place])
    msg = (
        f"{target.name} declares {declared}, which is false: entry {entry} of f is "
        f"{at_x} at X = {one.x[0].tolist()} and {at_y} at "
        f"Y = {one.y[0].tolist()}. It differs by {one.gaps[0]:.6g} where max|X - Y| = "
        f"{one.distances[0]:.6g}, and the declaration allows {allowed[worst]:.6g} ("
        f"{noise:.2g} more was allowed for the rounding of f). Correct the declaration."
    )
    raise TargetError(msg)


def _halved(target: Target, pairs: Pairs) -> Pairs:
    """Of every pair the steeper half, where both are as far apart as pairs may be."""
    box = target.domain
    half = max(b / 2 - a / 2 for a, b in zip(box.lows, box.highs, strict=True))
    pairs = pairs[_distance(pairs.x, pairs.y) > half * 2.0 ** (2 - CLOSEST)]
    middle = pairs.x / 2 + pairs.y / 2
    between = (middle != pairs.x).any(axis=(1, 2)) & (middle != pairs.y).any(axis=(1, 2))
    pairs, middle = pairs[between], middle[between]
    value = target(middle)
    halves = [
        Pairs(pairs.x, middle, pairs.f_x, value),
        Pairs(middle, pairs.y, value, pairs.f_y),
    ]
    first, second = (_steepness(target, half) for half in halves)
    left = (first >= second)[:, None, None]
    return Pairs(
        *(
            np.where(left, getattr(halves[0], name), getattr(halves[1], name))
            for name in ("x", "y", "f_x", "f_y")
        )
    )


def _families(
    grid: Grid, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of points of all families, in the order of the module's docstring."""
    shape = (PAIRS, grid.seq_len, grid.d_model)
    inside = rng.random(shape)
    yield _at(grid, inside), _moved(grid, inside, rng)
    inside = rng.random(shape)
    chosen = np.arange(grid.seq_len * grid.d_model) == rng.integers(
        grid.seq_len * grid.d_model, size=(PAIRS, 1)
    )
    yield _at(grid, inside), _moved(grid, inside, rng, chosen.reshape(shape))
    border = _on_borders(rng.random(shape), rng)
    yield _at(grid, border), _moved(grid, border, rng)
    far = [_on_borders(rng.random(shape), rng) for _ in range(2)]
    yield _at(grid, far[0]), _at(grid, far[1])
    cell = rng.integers(grid.cells, size=shape)
    corner = (cell + _on_borders(rng.random(shape), rng)) / grid.cells
    yield _at(grid, (cell + 0.5) / grid.cells), _at(grid, corner)
    cell = rng.integers(grid.cells, size=shape)
    corner = (cell + _on_borders(rng.random(shape), rng)) / grid.cells
    yield _at(grid, corner), _moved(grid, corner, rng)


def _at(grid: Grid, unit: np.ndarray) -> np.ndarray:
    """A point of [0, 1]^(n x d) as one of the domain."""
    low, high = np.asarray(grid.box.lows), np.asarray(grid.box.highs)
    return np.clip(low * (1 - unit) + high * unit, low, high)


def _moved(
    grid: Grid,
    unit: np.ndarray,
    rng: np.random.Generator,
    chosen: np.ndarray | None = None,
) -> np.ndarray:
    """Points at distances of 2^-30 .. 1 of the domain, within it.

    Half of them move by the same distance in all entries, the direction that shows most of
    a slope in the maximum norm.
    """
    length = 2.0 ** -rng.uniform(0, CLOSEST, (len(unit), 1, 1))
    share = rng.uniform(-1, 1, unit.shape)
    share[::2] = np.sign(share[::2])
    step = length * share * (1.0 if chosen is None else chosen)
    step = np.where((unit + step < 0) | (unit + step > 1), -step, step)
    return _at(grid, np.clip(unit + step, 0.0, 1.0))


def _on_borders(unit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Points with some, or all, of their entries at 0 or 1."""
    share = rng.choice([0.3, 0.7, 1.0], size=(len(unit), 1, 1))
    return np.where(rng.random(unit.shape) < share, np.rint(unit), unit)


def _distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The maximum norm of x - y, for each sequence."""
    with np.errstate(over="ignore"):
        return np.abs(x - y).max(axis=(1, 2))


def _check_equivariance(target: Target) -> None:
    """Compare f(PX) with P f(X) at random points, on borders and with near tokens."""
    rng = np.random.default_rng(1)
    grid = Grid(2, target.seq_len, target.domain)
    unit = rng.random((ORDERS, grid.seq_len, grid.d_model))
    unit[::3] = _on_borders(unit[::3], rng)
    nearer = 2.0 ** -rng.uniform(0, CLOSEST, (len(unit[1::3]), 1, 1))
    unit[1::3] = unit[1::3, :1] * (1 - nearer) + unit[1::3] * nearer
    x = _at(grid, unit)
    order = rng.permuted(np.tile(np.arange(grid.seq_len), (ORDERS, 1)), axis=1)[..., None]
    values = target(np.concatenate([x, np.take_along_axis(x, order, axis=1)]))
    expected, found = np.take_along_axis(values[:ORDERS], order, axis=1), values[ORDERS:]
    gaps = _distance(expected, found)
    noise = float(np.abs(values).max()) * REORDERING
    if not (gaps > noise).any():
        return
    worst = int(np.argmax(gaps))
    msg = (
        f"{target.name} is declared equivariant but is not: at X = {x[worst].tolist()} "
        f"and the token order {order[worst, :, 0].tolist()}, f of the permuted sequence is "
        f"{found[worst].tolist()}, and the permuted f {expected[worst].tolist()}. They "
        f"differ by {gaps[worst]:.6g} ({noise:.2g} was allowed for rounding). Declare "
        "equivariant=False, or repair f."
    )
    raise TargetError(msg)
