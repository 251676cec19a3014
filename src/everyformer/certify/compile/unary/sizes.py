"""Slope, moment and mean of a softmax head on an interval, in float64.

The cells of the error's proof are cut into `PARTS` pieces, |t - c| <= r. Let p_k be the
weights at c, m and f any numbers (about the means of a and v there), y_k = a_k - m and
u_k = v_k - f. With B >= |sum_k p_k y_k| and V >= |sum_k p_k u_k|, Jensen's inequality gives
sum_k p_k e^(y_k s) >= e^(-B |s|), so that on the piece

    p_k(t) <= q_k = min(1, o_k),   o_k = p_k e^(|y_k| r + B r),
    |Phi(t) - f| <= df = e^(Br) V + r sum_k o_k |u_k y_k|,
    |a(t) - m| <= da = e^(Br) B + r sum_k o_k y_k^2,   a(t) = the mean of a,
    |Phi''(t)| <= sum_k q_k (|u_k| + df) (|y_k| + da)^2,
        since Phi'' = sum_k p_k(t) (v_k - Phi(t)) (a_k - a(t))^2,
    |Phi'(t)| <= |Phi'(c)| + r sup |Phi''|,   |Phi'(c)| <= |sum_k p_k u_k y_k| + V B,

and the largest score m(t) = max_k(a_k t + b_k) lies between a_l c + b_l - |a_l| r, l the
token with the largest score at c, and max_k(a_k c + b_k + |a_k| r).

Rounding. With h = 2^-52 max_l(|a_l c| + |b_l|) + 2^-1000, a score a_k c + b_k is off by at
most h, and the difference of two by 3 h; with |y_k| r + B r added by 4 h, if the sum is not
positive, else by 3 h + 2^-43. A quotient of two exponentials of them is off by a factor
within e^(7h) (1 + 2^-40) of 1, which is at most 1 + x with x = 10 h + 2^-40, if h <= 2^-6.
What lies around m(t) is off by at most 4 h: |a_k| r <= h 2^52 is rounded, too.
Weights below e^-700 count as e^-700 when they are to be bounded from above. All other sums
have terms >= 0, at most 4096 of them, and are off by factors within 2^-38 of 1, but for
sums of p_k x_k of both signs: they are off by at most 2 x sum_k p_k |x_k| and 2^-900 max
|x_k| more. A product that underflows is off by 2^-1074, times other factors: numbers are at
most 2^256, df and da at most 2^300, so that 2^-200 covers all of it. Whatever is nan or too
large gives way to what holds for all weights:

    |Phi'| <= range(a) range(v) / 4,   moment <= (2 score + 1) range(v),   mean <= max |v|.
"""

from dataclasses import dataclass

import numpy as np

from everyformer.numerics.elementary import exp

PARTS = 32
"""Pieces of a cell."""

_CHUNK = 2**18
"""Pieces times tokens at a time."""

_UP = 1.0 + 2.0**-30
_UNDERFLOW = 2.0**-200
_LEAST, _GREATEST = -700.0, 700.0


@dataclass(frozen=True)
class _Head:
    a: np.ndarray
    b: np.ndarray
    v: np.ndarray


def bound_sizes(
    a: np.ndarray, b: np.ndarray, v: np.ndarray, cells: list[tuple[float, float]]
) -> tuple[float, float, float]:
    """Bound |Phi'|, the moment and the mean of a head.

    Args:
        a: (P,) float64, at most 2^256 in size.
        b: (P,) float64, likewise.
        v: (P,) float64, likewise.
        cells: Ends of intervals that cover the interval.

    Returns:
        Upper bounds of sup |Phi'|, sup sum_k p_k (|a_k t| + |b_k| + |m(t)| + 1) |v_k - Phi|
        with m(t) = max_l(a_l t + b_l), and sup sum_k p_k |v_k|; inf where they leave
        float64.
    """
    ends = np.array(cells)
    steps = np.arange(PARTS + 1) / PARTS
    with np.errstate(all="ignore"):
        # The first and the last point are the ends; the others lie anywhere between.
        points = ends[:, :1] * (1.0 - steps) + ends[:, 1:] * steps
        points = np.clip(points, ends[:, :1], ends[:, 1:])
        left, right = points[:, :-1].reshape(-1), points[:, 1:].reshape(-1)
        centre = 0.5 * left + 0.5 * right
        radius = np.maximum(np.abs(right - centre), np.abs(centre - left))
        radius = radius * _UP + 2.0**-1070
        head, rows = _Head(a, b, v), max(1, _CHUNK // a.size)
        found = [
            _bound_pieces(head, centre[k : k + rows], radius[k : k + rows])
            for k in range(0, centre.size, rows)
        ]
    slope, moment, mean = np.max(np.array(found), axis=0).tolist()
    return slope, moment, mean


def _bound_pieces(head: _Head, c: np.ndarray, r: np.ndarray) -> tuple[float, ...]:
    """The largest of the three bounds over some pieces; formulas as above."""
    a, b, v = head.a, head.b, head.v
    c, r = c[:, None], r[:, None]
    sizes = (np.abs(a) * (np.abs(c) + r) + np.abs(b)) * _UP
    most = sizes.max(axis=1, keepdims=True)
    h = 2.0**-52 * most + 2.0**-1000
    off = 10.0 * h + 2.0**-40
    scores = a * c + b
    first = scores.argmax(axis=1)[:, None]
    top = np.take_along_axis(scores, first, axis=1)
    above = (scores + np.abs(a) * r).max(axis=1, keepdims=True)
    below = top - np.abs(a)[first] * r
    loudest = (np.maximum(np.abs(above), np.abs(below)) + 4.0 * h) * _UP + 1.0
    scores -= top
    p = exp(np.maximum(scores, _LEAST))
    total = _sum(p)
    p /= total
    y, u = a - _sum(p * a), v - _sum(p * v)
    size_y, size_u = np.abs(y) * _UP, np.abs(u) * _UP

    def mean_of(x: np.ndarray) -> np.ndarray:
        size = np.abs(x)
        doubt = 2.0 * off * _sum(p * size) + 2.0**-900 * size.max(axis=1, keepdims=True)
        return (np.abs(_sum(p * x)) + doubt) * _UP

    B, V = mean_of(y), mean_of(u)
    growth = (size_y + B) * r * _UP
    growth += scores
    o = exp(np.clip(growth, _LEAST, _GREATEST)) / total * (1.0 + off) * _UP
    o = np.where(growth <= _GREATEST, o, np.inf)
    q = np.minimum(o, 1.0)
    more = exp(np.minimum(B * r * _UP, _GREATEST)) * _UP
    df = (more * V + r * _sum(o * size_u * size_y)) * _UP
    da = (more * B + r * _sum(o * size_y**2)) * _UP
    bend = _sum(q * (size_u + df) * (size_y + da) ** 2) * _UP
    slope = (mean_of(u * y) + V * B + r * bend) * _UP
    moment = _sum(q * (sizes + loudest) * (size_u + df)) * _UP
    mean = _sum(q * np.abs(v)) * _UP
    spread = (v.max() - v.min()) * _UP
    steepest = (a.max() - a.min()) * spread / 4.0 * _UP
    sound = (h <= 2.0**-6) & (B * r <= _GREATEST)
    sound &= (df <= 2.0**300) & (da <= 2.0**300)
    return tuple(
        float(np.where(sound & (bound <= limit), bound, limit).max()) + _UNDERFLOW
        for bound, limit in (
            (slope, steepest),
            (moment, (2.0 * most + 1.0) * spread * _UP),
            (mean, np.abs(v).max()),
        )
    )


def _sum(x: np.ndarray) -> np.ndarray:
    return x.sum(axis=1, keepdims=True)
