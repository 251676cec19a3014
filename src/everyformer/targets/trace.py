"""From a function written with numpy to an expression.

The function is run on an array of terms instead of numbers. What it does is written down,
line by line; then the lines are compared with the function itself at many points. At the
end it is recorded once more, in a batch of two: each sequence must give the same program.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyformer.errors import ExpressionError
from everyformer.numerics.expression import Expression
from everyformer.targets.agreement import compare
from everyformer.targets.failures import described
from everyformer.targets.recorder import ADVICE, COMMUTATIVE, Program, Recorder, Refused
from everyformer.targets.traced_array import Lines, Traced

"""Lines, and those of them that are the outputs."""


def trace(
    function: Callable[[np.ndarray], np.ndarray],
    seq_len: int,
    d_model: int,
    lows: Sequence[int | float] | np.ndarray,
    highs: Sequence[int | float] | np.ndarray,
) -> Expression:
    """Write down what a function does.

    Floats in the function are the rationals that they are: np.pi is the float64 number.
    The comparison finds functions that depend on more than x; it proves nothing.

    Args:
        function: f, vectorised: (batch, n, d) -> (batch, n, d).
        seq_len: n.
        d_model: d.
        lows: For each coordinate, or each of every token, where the domain begins.
        highs: The same, where it ends.

    Returns:
        The expression, with only the lines that its outputs need.

    Raises:
        ExpressionError: If f fails, does something that expressions cannot say (also if it
            goes on after that), is too long, returns another shape, differs from its own
            trace, or gives another one the next time.

    Example:
        >>> doubled = trace(lambda x: x + x[..., ::-1, :], 2, 1, [0], [1])
        >>> doubled.to_json()["nodes"]
        [['x', 0, 0], ['x', 1, 0], ['add', 0, 1]]
        >>> trace(lambda x: x.argsort(-2), 2, 1, [0], [1])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        everyformer.errors.ExpressionError: x.argsort cannot be traced. It is not among ...
    """

    def evaluate(x: np.ndarray) -> np.ndarray:
        theirs = _guarded(
            lambda: np.asarray(function(x.copy())).astype(np.float64),
            "was compared with its trace",
        )
        _check_shape(theirs, x.shape)
        return theirs

    (program,) = _record(function, seq_len, d_model, batch=1)
    expression = Expression(seq_len, d_model, *program)
    shape = (seq_len, d_model)
    ends = (np.broadcast_to(np.asarray(end, np.float64), shape) for end in (lows, highs))
    compare(expression, evaluate, *ends)
    for again in _record(function, seq_len, d_model, batch=2):
        _check_same(program, again)
    return expression


def _record(
    function: Callable[[np.ndarray], np.ndarray], seq_len: int, d_model: int, batch: int
) -> list[Program]:
    """Run f on terms: a program for each sequence of the batch.

    Raises:
        ExpressionError: The first thing that was refused, whatever f made of it.
    """
    recorder = Recorder(batch)
    x = Traced.entries(recorder, seq_len, d_model, batch)
    lift = Lines(recorder).lift
    try:
        outputs: np.ndarray = _guarded(lambda: lift(function(x)), "was traced")  # pyright: ignore[reportArgumentType]
    except ExpressionError as error:
        raise ExpressionError(recorder.refusal or str(error)) from error
    finally:
        recorder.close()
    if recorder.refusal is not None:
        raise ExpressionError(recorder.refusal)
    _check_shape(outputs, (batch, seq_len, d_model))
    recorder.check_dropped(outputs.reshape(-1, d_model).tolist())
    return [
        recorder.lines(seq_len, rows.tolist(), first=b * seq_len)
        for b, rows in enumerate(outputs)
    ]


def _check_same(first: Program, second: Program) -> None:
    """Refuse two programs that differ by more than the order of their lines."""
    if first[:2] == second[:2]:
        return
    known: dict[Any, int] = {}
    if _numbered(first, known) != _numbered(second, known):
        msg = (
            "Two recordings of the function gave two programs. To be an expression it must "
            "depend on x alone, without state, random numbers or the size of the batch. "
            "Repair the function, or declare lipschitz= or modulus=."
        )
        raise ExpressionError(msg)


def _numbered(program: Program, known: dict[Any, int]) -> list[list[int]]:
    """Outputs by numbers: equal numbers for equal lines with equal operands."""
    numbers: list[int] = []
    for node in program.nodes:
        operands = [numbers[k] for k in node.operands]
        if node.op in COMMUTATIVE:
            operands.sort()
        rest = node.args[len(operands) :]
        line = (node.op, tuple(operands), rest, node.value)
        numbers.append(known.setdefault(line, len(known)))
    return [[numbers[k] for k in row] for row in program.outputs]


def _guarded(call: Callable[[], np.ndarray], when: str) -> np.ndarray:
    """Call what the user wrote; all that goes wrong becomes one kind of error."""
    try:
        with np.errstate(all="ignore"):
            return call()
    except ExpressionError:
        raise
    except Refused as error:
        raise ExpressionError(str(error)) from error
    except Exception as error:
        msg = f"The function failed while it {when}: {described(error)}. {ADVICE}"
        raise ExpressionError(msg) from error


def _check_shape(values: np.ndarray, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        msg = (
            f"The function returned shape {values.shape} for input of shape {shape}. A "
            "target maps (batch, n, d) to (batch, n, d); reduce over tokens with axis=-2 "
            "and keepdims=True, over coordinates with axis=-1."
        )
        raise ExpressionError(msg)
