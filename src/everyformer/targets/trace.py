"""From a function written with numpy to an expression.

The function is run once on an array of terms instead of numbers. What it does is written
down, line by line, and then compared with the function itself at random points.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyformer.errors import ExpressionError
from everyformer.numerics.expression import Expression
from everyformer.targets.recorder import ADVICE, Recorder
from everyformer.targets.traced_array import Traced

COMPARISONS = 64
"""Random sequences at which the expression must agree with the function."""

TOLERANCE = 1e-9
"""Relative and absolute: float64 adds in another order, and no more than that."""


def trace(
    function: Callable[[np.ndarray], np.ndarray],
    seq_len: int,
    d_model: int,
    lows: Sequence[int | float],
    highs: Sequence[int | float],
) -> Expression:
    """Write down what a function does.

    Floats in the function are the rationals that they are: np.pi is the float64 number.
    The comparison finds functions that depend on more than x; it proves nothing.

    Args:
        function: f, vectorised: (batch, n, d) -> (batch, n, d).
        seq_len: n.
        d_model: d.
        lows: For each coordinate, where the domain begins.
        highs: For each coordinate, where it ends.

    Returns:
        The expression, with only the lines that its outputs need.

    Raises:
        ExpressionError: If f fails, does something that expressions cannot say, is too
            long, returns another shape, or differs from its own trace.

    Example:
        >>> doubled = trace(lambda x: x + x[..., ::-1, :], 2, 1, [0], [1])
        >>> doubled.to_json()["nodes"]
        [['x', 0, 0], ['x', 1, 0], ['add', 0, 1]]
        >>> trace(lambda x: x.argsort(-2), 2, 1, [0], [1])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        everyformer.errors.ExpressionError: The function failed ... attribute 'argsort'...
    """
    recorder = Recorder()
    x = Traced.entries(recorder, seq_len, d_model)
    outputs: np.ndarray = _guarded(lambda: x.lift(function(x)), "was traced")  # pyright: ignore[reportArgumentType]
    _check_shape(outputs, (1, seq_len, d_model))
    expression = recorder.expression(seq_len, d_model, outputs[0].tolist())
    low, high = np.asarray(lows, np.float64), np.asarray(highs, np.float64)
    unit = np.random.default_rng(0).random((COMPARISONS, seq_len, d_model))
    _compare(expression, function, low * (1 - unit) + high * unit)
    return expression


def _compare(expression: Expression, function: Callable[..., Any], x: np.ndarray) -> None:
    def call() -> np.ndarray:
        return np.asarray(function(x.copy())).astype(np.float64)

    theirs = _guarded(call, "was compared with its trace")
    _check_shape(theirs, x.shape)
    ours = expression(x)
    finite = np.isfinite(theirs) & np.isfinite(ours)
    close = np.isclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    agrees = (finite & close).all(axis=(-2, -1))
    if not agrees.all():
        index = int(np.argmin(agrees))
        msg = (
            f"At x = {x[index].tolist()} the function returns {theirs[index].tolist()} and "
            f"its trace {ours[index].tolist()}. To be an expression it must depend on x "
            "alone, without state or random numbers, treat every sequence of the batch "
            "alike, and be finite. Repair the function, or declare lipschitz= or modulus=."
        )
        raise ExpressionError(msg)


def _guarded(call: Callable[[], np.ndarray], when: str) -> np.ndarray:
    """Call what the user wrote; all that goes wrong becomes one kind of error."""
    try:
        with np.errstate(all="ignore"):
            return call()
    except ExpressionError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".rstrip(".")
        msg = f"The function failed while it {when}: {said}. {ADVICE}"
        raise ExpressionError(msg) from error


def _check_shape(values: np.ndarray, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        msg = (
            f"The function returned shape {values.shape} for input of shape {shape}. A "
            "target maps (batch, n, d) to (batch, n, d); reduce over tokens with axis=-2 "
            "and keepdims=True, over coordinates with axis=-1."
        )
        raise ExpressionError(msg)
