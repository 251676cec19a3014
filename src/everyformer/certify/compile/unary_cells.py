"""Where an interval is cut before a head is proved; soundness does not depend on it."""

import numpy as np

from everyformer.certify.compile.reference import Reference

REACH = 0.5
"""Radius of a cell, in units of 1 / the deviation of a under the weights at its centre."""

NEAR = 0.25
"""Radius of a cell, of the distance between its centre and a singularity of g."""

MOST_PIECES = 20_000
"""Cells times tokens before the proof begins."""

_DEEPEST = 60


def cut(
    a: np.ndarray, b: np.ndarray, reference: Reference, low: float, high: float
) -> list[tuple[float, float]]:
    """Halve [low, high] until the cells suit a series of the head and of g.

    Args:
        a: (P,), factors of t in the scores.
        b: (P,), constants in the scores.
        reference: g.
        low: The interval's lower end.
        high: Its upper end.

    Returns:
        The cells' ends. They cover the interval whatever the numbers are.
    """
    lows, highs = np.array([low]), np.array([high])
    done: list[tuple[float, float]] = []
    with np.errstate(all="ignore"):
        for _ in range(_DEEPEST):
            middle = 0.5 * lows + 0.5 * highs
            radius = 0.5 * highs - 0.5 * lows
            gaps = np.array([reference.gap(c) for c in middle.tolist()])
            wide = radius * _deviation(a, b, middle) > REACH
            wide |= radius > NEAR * gaps
            wide &= (lows < middle) & (middle < highs)
            if wide.sum() + lows.size + len(done) > 1 + MOST_PIECES // a.size:
                break
            done += zip(lows[~wide].tolist(), highs[~wide].tolist(), strict=True)
            lows, highs, middle = lows[wide], highs[wide], middle[wide]
            lows, highs = np.append(lows, middle), np.append(middle, highs)
            if not lows.size:
                break
    return [*done, *zip(lows.tolist(), highs.tolist(), strict=True)]


def _deviation(a: np.ndarray, b: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The standard deviation of a under the weights at t."""
    scores = t[:, None] * a + b
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    mean = weights @ a
    return np.sqrt((weights * (a - mean[:, None]) ** 2).sum(axis=1))
