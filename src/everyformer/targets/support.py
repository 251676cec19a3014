"""A declared support held against the function itself, at points on and off the box.

`everywhere=True` says that f is 0 outside its box, and so, being continuous, on its border.
f is evaluated at random points of the border, and at points outside that are from 2^-30 to
2^10 widths of the box away. What this finds is a counterexample; that it finds none proves
nothing.
"""

import numpy as np

from everyformer.errors import TargetError
from everyformer.targets.target import Target

POINTS = 2048
"""Points of each kind."""

NEAREST, FARTHEST = -30, 10
"""Exponents of the distances from the box, in widths of it."""

ROUNDING = 2.0**-40
"""Share of the largest |f| that float64 may leave on the border."""


def check_support(target: Target) -> None:
    """Look for points where f is not 0, on the border of the box and outside.

    Raises:
        TargetError: Showing the point and the value.
    """
    rng = np.random.default_rng(0)
    low, high = np.asarray(target.domain.lows), np.asarray(target.domain.highs)
    shape = (POINTS, target.seq_len, target.d_model)
    inside = low + (high - low) * rng.random(shape)
    around = low + (high - low) * rng.uniform(-4, 5, shape)
    number = np.arange(POINTS)
    at = (number, *(rng.integers(size, size=POINTS) for size in shape[1:]))
    above = rng.random(POINTS) < 0.5
    edge = np.where(above, high[at[2]], low[at[2]])
    away = (high - low)[at[2]] * 2.0 ** rng.uniform(NEAREST, FARTHEST, POINTS)
    moved = np.where(above, edge + away, edge - away)
    nearest = np.nextafter(edge, np.where(above, np.inf, -np.inf))
    on_border, beyond = inside.copy(), np.where(number[:, None, None] % 2, around, inside)
    on_border[at] = edge
    beyond[at] = np.where(moved == edge, nearest, moved)
    size = float(np.abs(target(inside)).max())
    _zero(target, on_border, size * ROUNDING, "on the border of")
    try:
        _zero(target, beyond, 0.0, "outside")
    except TargetError as error:
        if "everywhere" in str(error):
            raise
        msg = f"everywhere=True, but f has no values outside the box: {error}"
        raise TargetError(msg) from error


def _zero(target: Target, x: np.ndarray, allowed: float, where: str) -> None:
    values = np.abs(target(x)).max(axis=(1, 2))
    worst = int(np.argmax(values))
    if values[worst] > allowed:
        msg = (
            f"{target.name} is declared with everywhere=True, but its support is not "
            f"inside the box {target.domain}: at x = {x[worst].tolist()}, {where} the box, "
            f"|f| is {values[worst]:.6g}. Give a larger domain, make f vanish there (with "
            "np.maximum or np.where), or leave everywhere out."
        )
        raise TargetError(msg)
