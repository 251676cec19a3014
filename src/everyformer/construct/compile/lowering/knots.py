"""Prefix tokens for functions of one number (gadget G2).

A head over P constant tokens with keys (a_k, b_k) and values v_k computes

    Phi(t) = sum_k v_k e^(a_k t + b_k) / sum_k e^(a_k t + b_k).

*Exact*: tanh with a = v = (1, -1), the logistic function with a = v = (1, 0).

*exp*: a = (1, 0), b = (-c, 0), v = (e^c, 0) gives e^t / (1 + e^(t - c)), off by less than
e^(2 t - c).

*Gauss*, on [-1, 1]: a_k = delta x_k, b_k = -kappa x_k^2 with x_k = k - (P - 1)/2. The
weights are Gaussians at knots with distance h = 2 kappa/delta, of width h/sqrt(2 kappa).

*Gamma*, on [low, high] with low > 0: a_k = -alpha/t_k, b_k = -alpha log t_k with a
geometric sequence t_k. In log t all weights have one shape, so that powers and log need few
knots.

For Gauss and Gamma knots Phi is linear in v, and v is fitted by least squares. With wide
Gaussians few knots suffice, as for interpolation by a polynomial of degree P - 1, but v is
large and rounding grows with it: five knots give t^2 to 5e-11, nine to 7e-13. The search
takes the fewest knots whose error and rounding, both sampled, are small enough, or else the
best that it met. Nothing here is proved; the verifier bounds whatever the numbers are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from math import ceil, exp, log

import numpy as np

from everyformer.construct.compile.program import Function
from everyformer.errors import ToleranceError

UNIT = 2.0**-53
SAMPLES = 257
"""Points at which a choice of knots is measured."""

MOST_KNOTS = 96
LEAST = 2.0**-1022
"""No accuracy is finer: float64 has no normal numbers below."""

LARGEST_MEAN = 2.0**12
"""Most that rounding of the weights may be magnified, unless steadier knots are wanted."""

LARGEST_VALUE = 2.0**22
"""Largest value of a prefix token, over the largest value of the function."""

_COUNTS = (*range(2, 17), 18, 20, 23, 26, 30, 34, 39, 45, 52, 60, 70, 82, MOST_KNOTS)


@dataclass(frozen=True)
class Column:
    """A function that a head computes: fn(scale tau + shift) for tau in [low, high].

    Attributes:
        function: fn.
        scale: What the head's argument tau is multiplied with.
        shift: What is added.
        low: The least tau.
        high: The largest tau.
        accuracy: The wanted error.
    """

    function: Function
    scale: Fraction
    shift: Fraction
    low: float
    high: float
    accuracy: float

    def at(self, tau: np.ndarray) -> np.ndarray:
        """fn(scale tau + shift)."""
        t = float(self.scale) * tau + float(self.shift)
        name, power = self.function.name, self.function.power
        if name == "pow" and power is not None:
            return np.power(t, int(power) if power.denominator == 1 else float(power))
        return getattr(np, name)(t)  # exp, log, sin or cos

    def at_ends(self) -> float:
        """The larger of its absolute values at both ends."""
        return float(np.abs(self.at(np.array([self.low, self.high]))).max())


@dataclass(frozen=True)
class Knots:
    """Keys of prefix tokens, and the values of each column.

    Attributes:
        a: Factors of tau in the scores.
        b: Constants in the scores.
        values: v of each column.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]


TANH = Knots((1.0, -1.0), (0.0, 0.0), ((1.0, -1.0),))
LOGISTIC = Knots((1.0, 0.0), (0.0, 0.0), ((1.0, 0.0),))


def exp_constant(high: float, accuracy: float) -> int:
    """c with e^(2 high - c) at most half the accuracy."""
    return ceil(2 * high + log(2 / accuracy))


def exp_knots(c: int) -> Knots:
    """e^t / (1 + e^(t - c))."""
    return Knots((1.0, 0.0), (float(-c), 0.0), ((exp(c), 0.0),))


@lru_cache(maxsize=256)
def gauss_knots(columns: tuple[Column, ...], steady: float = LARGEST_MEAN) -> Knots:
    """One grid for several functions on [-1, 1]."""
    return _search(columns, _gauss_grids, _chebyshev, steady)


@lru_cache(maxsize=256)
def gamma_knots(columns: tuple[Column, ...], steady: float = LARGEST_MEAN) -> Knots:
    """One grid for several functions on intervals of positive numbers."""
    low, high = min(c.low for c in columns), max(c.high for c in columns)
    grids = partial(_gamma_grids, low=low, high=high)
    return _search(columns, grids, _geometric, steady)


Grid = tuple[np.ndarray, np.ndarray]


def _gauss_grids(P: int) -> Iterator[Grid]:
    x = np.arange(P) - (P - 1) / 2
    few = P <= 10
    kappas = (0.1, 0.2, 0.5, 1.0) if few else (0.1, 0.15, 0.2, 0.3, 0.5)
    exponents = np.arange(-10.0, 3.0, 1.0) if few else np.arange(-2.0, 4.0, 0.5)
    for kappa in kappas:
        for delta in 2.0**exponents:
            yield delta * x, -kappa * x * x


def _gamma_grids(P: int, low: float, high: float) -> Iterator[Grid]:
    for alpha in (0.5, 1.0, 1.5, 2.0, 3.0):
        for below in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0):
            for above in (-0.5, 0.0, 1.0):
                span = max(log(high / low) + below + above, 0.1)
                logs = log(low) - below + span * np.arange(P) / (P - 1)
                yield -alpha * np.exp(-logs), -alpha * logs


def _chebyshev(low: float, high: float, count: int) -> np.ndarray:
    x = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    return (low + high) / 2 + (high - low) / 2 * x


def _geometric(low: float, high: float, count: int) -> np.ndarray:
    return np.exp(_chebyshev(log(low), log(high), count))


def _weights(grid: Grid, t: np.ndarray) -> np.ndarray:
    scores = np.outer(t, grid[0]) + grid[1]
    scores -= scores.max(axis=1, keepdims=True)
    weights = np.exp(scores)
    return weights / weights.sum(axis=1, keepdims=True)


Nodes = Callable[[float, float, int], np.ndarray]
Fit = tuple[float, np.ndarray]
"""What the values of a column miss, over what is wanted; the values."""


@lru_cache(maxsize=64)
def _sampled(column: Column, nodes: Nodes, P: int) -> tuple[np.ndarray, ...]:
    """Where a column is fitted and where it is measured, with its values there."""
    t = nodes(column.low, column.high, 3 * P + 20)
    samples = nodes(column.low, column.high, SAMPLES)
    samples = np.concatenate([[column.low], samples, [column.high]])
    return t, column.at(t), samples, column.at(samples)


def _fit(column: Column, grid: Grid, nodes: Nodes, limit: float, steady: float) -> Fit:
    """Least squares at Chebyshev nodes; error and rounding are sampled in between.

    A fit that a few samples show to be worse than the limit is not measured further.
    """
    P = len(grid[0])
    t, given, samples, wanted = _sampled(column, nodes, P)
    v = np.linalg.lstsq(_weights(grid, t), given, rcond=1e-15)[0]
    scale = float(np.abs(wanted).max())
    accuracy = max(column.accuracy, 3e-14 * scale, LEAST)
    few = slice(None, None, len(samples) // 24)
    error = float(np.abs(_weights(grid, samples[few]) @ v - wanted[few]).max())
    if error > 1.001 * limit * 0.9 * accuracy:
        return np.inf, v
    weights = _weights(grid, samples)
    phi = weights @ v
    sizes = np.abs(np.outer(samples, grid[0])) + np.abs(grid[1])
    spread = np.abs(v - phi[:, None])
    largest = np.abs((np.outer(samples, grid[0]) + grid[1]).max(axis=1, keepdims=True))
    moment = (weights * (sizes + largest + 1) * spread).sum(axis=1)
    mean = weights @ np.abs(v)
    rounding = UNIT * float((16 * moment + (2 * P + 24) * mean).max())
    error = float(np.abs(phi - wanted).max())
    badness = max(error / (0.9 * accuracy), rounding / max(0.2 * accuracy, 1e-12 * scale))
    free = P <= 4 and steady >= LARGEST_MEAN
    large = not free and mean.max() > steady * scale
    if large or np.abs(v).max() > LARGEST_VALUE * scale:
        badness = np.inf
    return badness, v


def _search(
    columns: tuple[Column, ...],
    grids: Callable[[int], Iterator[Grid]],
    nodes: Nodes,
    steady: float,
) -> Knots:
    """The fewest knots that serve all columns, and the best such grid."""

    def best(P: int) -> tuple[float, Grid, list[Fit]]:
        found: tuple[float, Grid, list[Fit]] | None = None
        for grid in grids(P):
            limit = np.inf if found is None else found[0]
            fits = _fits(columns, grid, nodes, limit, steady)
            if fits and (found is None or max(badness for badness, _ in fits) < found[0]):
                found = max(badness for badness, _ in fits), grid, fits
        return found or (np.inf, (np.zeros(P), np.zeros(P)), [])

    low, high = -1, len(_COUNTS)  # a count that is too small, and one that suffices
    step, at = 2, 3
    known: dict[int, tuple[float, Grid, list[Fit]]] = {}
    while high - low > 1:
        at = min(max(at, low + 1), high - 1)
        known[at] = best(_COUNTS[at])
        if known[at][0] <= 1:
            high = at
            at = (low + high) // 2
        else:
            low = at
            unknown = high == len(_COUNTS)
            at = at + step if unknown else (low + high) // 2
            step *= 2
    if high == len(_COUNTS):
        least = min(entry[0] for entry in known.values())
        high = min(at for at, entry in known.items() if entry[0] <= 1.5 * least)
    if not known[high][2]:
        names = ", ".join(dict.fromkeys(column.function.name for column in columns))
        msg = (
            f"{_COUNTS[-1]} prefix tokens do not compute {names} to within "
            f"{min(c.accuracy for c in columns):.1e}. Narrow the domain, or ask for less."
        )
        raise ToleranceError(msg)
    _, grid, fits = known[high]
    a, b = (tuple(part.tolist()) for part in grid)
    return Knots(a, b, tuple(tuple(v.tolist()) for _, v in fits))


def _fits(
    columns: Sequence[Column],
    grid: Grid,
    nodes: Nodes,
    limit: float,
    steady: float,
) -> list[Fit]:
    """The fits of all columns; none if one of them is not better than the limit."""
    fits: list[Fit] = []
    for column in columns:
        fit = _fit(column, grid, nodes, limit, steady)
        if not fit[0] < limit:
            return []
        fits.append(fit)
    return fits
