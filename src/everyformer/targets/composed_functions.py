"""Functions of arrays that are said with those that a traced array goes through.

Each is called as numpy's own, with the `Lines` that the arrays belong to in front. What
would be a jump, or depends on more than numbers, is refused with the reason.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

MOVING_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
"""Ways of np.pad that only move entries, or put numbers beside them."""


def norm(on: Any, x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of vectors: 2, 1, inf or -inf; of all entries or of matrices Frobenius'."""
    if axis is None and ord is not None and x.ndim == 1:
        axis = 0
    single = isinstance(axis, (int, np.integer))
    if ord is None or (ord == "fro" and not single) or (ord == 2 and single):
        return np.sqrt((x * x).sum(axis, keepdims=keepdims))
    if not single or ord not in {1, np.inf, -np.inf}:
        why = "Give axis=, and ord=2, 1 or np.inf"
        on.recorder.refuse(f"The function numpy.linalg.norm with ord={ord!r}", why)
    size = np.abs(x)
    reduce = np.sum if ord == 1 else np.max if ord == np.inf else np.min
    return reduce(size, axis=axis, keepdims=keepdims)


def ptp(on: Any, a: Any, axis: Any = None, out: Any = None, **kwargs: Any) -> Any:
    """The largest entry minus the smallest."""
    return np.subtract(np.max(a, axis, **kwargs), np.min(a, axis, **kwargs), out=out)


def median(
    on: Any,
    a: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any:
    """The one in the middle of the sorted entries, or the mean of the two."""
    if axis is not None and not isinstance(axis, (int, np.integer)):
        why = "Give one axis, after a reshape"
        return on.recorder.refuse("The function numpy.median over several axes", why)
    if overwrite_input:
        on.recorder.refuse("numpy.median with overwrite_input", "It leaves x half sorted")
    place = 0 if axis is None else int(axis)
    numbers = a.ravel() if axis is None else a
    rows = np.moveaxis(np.sort(numbers, axis=place), place, 0)
    middle = (rows[(len(rows) - 1) // 2] + rows[len(rows) // 2]) / 2
    if keepdims:
        kept = (1,) * a.ndim
        middle = middle.reshape(kept) if axis is None else np.expand_dims(middle, place)
    return np.positive(middle, out=out)


def average(
    on: Any,
    a: Any,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    """The mean, or the sum of multiples over the sum of the weights.

    Where these are 0, numpy raises an error, whatever becomes of the result.
    """
    if returned:
        on.recorder.refuse("The function numpy.average with returned=True", "Use np.sum")
    if weights is None:
        return np.mean(a, axis=axis, keepdims=keepdims)
    given = on.like(on.lift(weights))
    if given.shape != a.shape:
        if given.ndim != 1 or not isinstance(axis, (int, np.integer)):
            why = "Weights have the shape of x, or one axis, which axis= names"
            on.recorder.refuse("The function numpy.average with these weights", why)
        shape = [1] * a.ndim
        shape[axis] = given.size
        given = given.reshape(tuple(shape))
    total = (a * given).sum(axis, keepdims=keepdims)
    weight = given.sum(axis, keepdims=keepdims)
    weight = weight.reshape(total.shape if given.shape == a.shape else ())
    result = total / weight
    on.recorder.require(on.lift(result).flat)
    return result


def polyval(on: Any, p: Any, x: Any) -> Any:
    """A polynomial by its coefficients, the highest power first.

    A constant has x in it, too: it is undefined where x is.
    """
    result, coefficients = np.zeros_like(x), list(p)
    for k, coefficient in enumerate(coefficients):
        follows = k > 0 or len(coefficients) == 1
        result = result * x + coefficient if follows else result + coefficient
    return result


def interp(
    on: Any,
    x: Any,
    xp: Any,
    fp: Any,
    left: Any = None,
    right: Any = None,
    period: Any = None,
) -> Any:
    """The broken line through (xp, fp), a ramp for each corner."""

    def refuse(why: str) -> None:
        on.recorder.refuse("The function numpy.interp", why)

    if on.is_traced(xp) or on.is_traced(fp):
        refuse("Its corners must be numbers")
    at, value = (np.asarray(row, np.float64) for row in (xp, fp))
    if period is not None or at.ndim != 1 or at.shape != value.shape or not at.size:
        refuse("It takes x, xp and fp, of one axis and of one length, without a period")
    if not (np.diff(at) > 0).all():
        refuse("xp must increase")
    for end, kept in ((left, value[0]), (right, value[-1])):
        if end is not None and end != kept:
            refuse("left= and right= would be jumps")
    corners, heights = (on.like(on.lift(row)) for row in (at, value))
    slopes = np.diff(heights) / np.diff(corners)
    result, slope = np.zeros_like(x, order="C") + heights[0], 0
    for k in range(at.size if at.size > 1 else 0):
        after = slopes[k] if k + 1 < at.size else 0
        result = result + (after - slope) * np.maximum(x - corners[k], 0)
        slope = after
    return result


def pad(array_function: Callable[..., Any]) -> Callable[..., Any]:
    """np.pad with moved entries or with numbers, by numpy's own code."""

    def call(
        on: Any, array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any
    ) -> Any:
        if mode not in MOVING_MODES or kwargs.get("reflect_type", "even") != "even":
            why = f"Take one of {', '.join(MOVING_MODES)}"
            on.recorder.refuse(f"The function numpy.pad with mode={mode!r}", why)
        return array_function(on, array, pad_width, mode, **kwargs)

    return call
