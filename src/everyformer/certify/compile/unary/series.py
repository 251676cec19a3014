"""How far a softmax head is from a function, on a small interval.

A head with the tokens (a_k, b_k, v_k) computes

    Phi(t) = sum_k v_k w_k / sum_k w_k,   w_k = e^(a_k t + b_k).

On a cell t = c + R s, |s| <= 1, divide all w_k by the same e^(m t + m'), so that they add
up to 1 at c and so that m is the mean of the a_k there. With p_k the weights at c,

    Phi - g = F / D,   F = sum_k p_k (v_k - g(c)) e^(y_k s) - (g - g(c)) D,
                       D = sum_k p_k e^(y_k s),   y_k = (a_k - m) R.

Exponentials and g are replaced by Taylor polynomials in s whose last coefficient is a ball
around 0 with Lagrange's remainder; sums and products of such polynomials contain the true
values for each s. So no error of Phi - g is magnified by more than what D varies on a cell.

On the grid s_i = i / GRID a polynomial f differs between two neighbours from the line
through its values by at most sup |f''| / (8 GRID^2): hence bounds of F and D between them.
"""

import importlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from everyformer.certify.compile.unary.reference import Reference, around_zero, balls, exact

ORDER = 20
"""Of the Taylor polynomials."""

GRID = 128
"""Points of a cell on either side of its centre."""

_UNHEARD, _UNHEARD_SCORE = Fraction(1, 2**110), -77
"""Tokens with less weight on a whole cell are added to its error: 2^-110, about e^-77."""

_STEEPEST = 256.0
"""Largest y_k for which a series is tried."""

_FAINTEST = -20_000
"""Scores below the largest by more have a weight between 0 and e^-20000."""


@dataclass(frozen=True)
class Tokens:
    """A head's tokens with distinct scores, as balls.

    Attributes:
        a: Factors of t in the scores.
        b: Constants in the scores.
        v: Values.
        count: How many tokens each of them stands for.
    """

    a: list[Any]
    b: list[Any]
    v: list[Any]
    count: list[int]

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray, v: np.ndarray) -> "Tokens":
        """Tokens with equal scores become one, whose value is their mean."""
        values: dict[tuple[float, float], list[Fraction]] = {}
        for *score, value in zip(a.tolist(), b.tolist(), v.tolist(), strict=True):
            values.setdefault((score[0], score[1]), []).append(Fraction(value))
        return cls(
            [exact(Fraction(slope)) for slope, _ in values],
            [exact(Fraction(offset)) for _, offset in values],
            [exact(sum(some, Fraction(0)) / len(some)) for some in values.values()],
            [len(some) for some in values.values()],
        )

    def less(self, other: list[tuple[Fraction, Fraction, int]]) -> "Tokens":
        """The head that computes the difference of two: scores add, values subtract."""
        pairs = [(k, token) for k in range(len(self.a)) for token in other]
        return Tokens(
            [self.a[k] + exact(token[0]) for k, token in pairs],
            [self.b[k] + exact(token[1]) for k, token in pairs],
            [self.v[k] - token[2] for k, token in pairs],
            [self.count[k] for k, _ in pairs],
        )


def bound_cell(
    tokens: Tokens, reference: Reference | None, low: float, high: float
) -> tuple[float, float, float]:
    """Bound |Phi - g| on [low, high]: by series, or by the range of the values.

    Args:
        tokens: Those of Phi.
        reference: g; None for 0.
        low: The cell's lower end.
        high: Its upper end.

    Returns:
        The bound, or inf; a value that |Phi - g| takes there, or 0; about the size of the
        values that are averaged, or 0. Only the first is needed for a proof.
    """
    middle = Fraction(0.5 * low + 0.5 * high)
    radius = max(Fraction(high) - middle, middle - Fraction(low))
    zero = exact(Fraction(0))
    g = [zero] if reference is None else reference.expand(middle, radius, ORDER)
    at_centre, around = g[0], [zero, *g[1:]]
    if reference is not None and len(g) == 1:
        # g by its range: a constant coefficient with that radius.
        at_centre = g[0].mid()
        around = [g[0] - at_centre]
    u = [value - at_centre for value in tokens.v]
    upper, value, size = float_above(_largest(u) + _sum_of_sizes(around)), 0.0, 0.0
    found = _head_series(tokens, u, exact(middle), exact(radius))
    if found is not None:
        N, D, size = found
        with np.errstate(all="ignore"):
            by_series, value = _bound_quotient(_less_product(N, around, D), D)
        upper = by_series if by_series < upper else upper
    return upper, value, size


def _largest(balls: list[Any]) -> Any:
    largest = balls[0].abs_upper()
    for ball in balls[1:]:
        largest = largest.max(ball.abs_upper())
    return largest


def _sum_of_sizes(balls: list[Any]) -> Any:
    return sum((ball.abs_upper() for ball in balls), exact(Fraction(0)))


def _less_product(N: list[Any], h: list[Any], D: list[Any]) -> list[Any]:
    """N - h D, coefficient by coefficient."""
    if len(h) == 1 and h[0].is_zero():
        return N
    polynomial: Any = importlib.import_module("flint").arb_poly
    return list((polynomial(N) - polynomial(h) * polynomial(D)).coeffs())


def _head_series(
    tokens: Tokens, u: list[Any], c: Any, radius: Any
) -> tuple[list[Any], list[Any], float] | None:
    """Coefficients of sum_k p_k u_k e^(y_k s) and of D; None if some y_k is too large.

    |e^(ys) - sum_{j <= n} (ys)^j / j!| <= |y|^(n+1) / (n+1)! e^|y| |s|^(n+1). Tokens that
    are hardly heard anywhere on the cell are added to the error: p e^(ys) <= p e^|y|. The
    third number is about sum_k p_k |u_k|, the size of what is averaged.
    """
    scores = [a * c + b for a, b in zip(tokens.a, tokens.b, strict=True)]
    top = max(scores, key=lambda score: float(score.mid()))
    scores = [score - top for score in scores]
    zero, faintest = exact(Fraction(0)), exact(Fraction(_FAINTEST))
    whisper = zero.union(faintest.exp())
    weights = [
        (whisper if score < faintest else score.exp()) * count
        for score, count in zip(scores, tokens.count, strict=True)
    ]
    total: Any = sum(weights, zero)
    p = [weight / total for weight in weights]
    mean: Any = sum((weight * a for weight, a in zip(p, tokens.a, strict=True)), zero)
    mean = mean.mid()
    size: Any = sum((weight * x.abs_upper() for weight, x in zip(p, u, strict=True)), zero)
    size = size.abs_upper()
    N, D = [zero] * (ORDER + 2), [zero] * (ORDER + 2)
    faint = exact(_UNHEARD)
    for k, weight in enumerate(p):
        y, value = (tokens.a[k] - mean) * radius, u[k]
        steepness, most_value = y.abs_upper(), value.abs_upper()
        if scores[k] + steepness < _UNHEARD_SCORE:
            loudest = scores[k] + steepness
            most = (faintest if loudest < faintest else loudest).exp() / total
            most = (most * tokens.count[k]).abs_upper()
            if most * most_value < faint * size:
                D[0] = D[0] + around_zero(most)
                N[0] = N[0] + around_zero(most * most_value)
                continue
        if not steepness <= _STEEPEST:
            return None
        term = weight
        for j in range(ORDER + 1):
            D[j] = D[j] + term
            N[j] = N[j] + term * value
            term = term * y
        rest = term.abs_upper() * steepness.exp()
        D[-1] = D[-1] + rest
        N[-1] = N[-1] + rest * most_value
    factorial = 1
    for j in range(2, ORDER + 2):
        factorial *= j
        D[j], N[j] = D[j] / factorial, N[j] / factorial
    for series in (N, D):
        series[-1] = around_zero(series[-1])
    return N, D, float_above(size)


@cache
def _grid(points: int, degree: int) -> np.ndarray:
    """(i / points)^j for |i| <= points, j <= degree, rounded once."""
    numbers = [Fraction(i, points) for i in range(-points, points + 1)]
    return np.array([[float(s**j) for j in range(degree + 1)] for s in numbers])


def _bound_quotient(F: list[Any], D: list[Any]) -> tuple[float, float]:
    """A bound of |F| / D for all |s| <= 1, and a value on the grid; inf, 0 if unknown."""
    F_values, F_error, F_bend = _on_grid(F)
    D_values, D_error, D_bend = _on_grid(D)
    sizes = np.abs(F_values) + F_error
    least = D_values - D_error
    between = np.maximum(sizes[1:], sizes[:-1]) + F_bend
    below = np.minimum(least[1:], least[:-1]) - D_bend
    if not (np.isfinite(between).all() and below.min() > 0.0):
        return math.inf, 0.0
    upper = float((between / below).max()) * (1.0 + 2.0**-40) + 2.0**-1000
    values = (np.abs(F_values) - F_error) / (D_values + D_error)
    value = float(values.max())
    return (upper, max(value, 0.0)) if upper < math.inf else (math.inf, 0.0)


def _on_grid(series: list[Any]) -> tuple[np.ndarray, float, float]:
    """Values on the grid, how far off they are, and what may be added between them.

    A coefficient is f + e with f a float64 and |e| its radius plus 2^-51 |f|. Coefficients
    beyond ORDER + 1 are added to the error. Rounding: each product carries two factors,
    each sum of ORDER + 2 terms that many, below gamma_32 < 2^-47 of sum |f_j|, or 2^-1000
    where they underflow. sup |f''| <= sum_j j (j-1) |f_j|.
    """
    kept, cut = series[: ORDER + 2], series[ORDER + 2 :]
    if not all(ball.is_finite() for ball in series):
        return np.full(2 * GRID + 1, math.inf), math.inf, math.inf
    middle = np.array([float(ball.mid()) for ball in kept])
    radius = np.array([float(ball.rad()) for ball in kept])
    radius = radius * (1.0 + 2.0**-20) + np.abs(middle) * 2.0**-51 + 2.0**-1050
    size = np.abs(middle) + radius
    rest = float_above(_sum_of_sizes(cut)) if cut else 0.0
    degree = np.arange(len(kept))
    error = float(radius.sum() + rest + size.sum() * 2.0**-46) + 2.0**-1000
    bend = float((size * (degree * (degree - 1))).sum()) / (8.0 * GRID * GRID)
    values = _grid(GRID, ORDER + 1)[:, : len(kept)] @ middle
    return values, error * (1.0 + 2.0**-40), bend * (1.0 + 2.0**-40)


def float_above(ball: Any) -> float:
    """A float64 that is not below the ball; inf if it has no end."""
    low, high = balls().ends(ball)
    return high if high >= low else math.inf
