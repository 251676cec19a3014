"""A trace does what numpy does: kinds of numbers, views and layouts.

Each program does something else than it seems to where an entry of x is RARE: no sample of
the trace comes there. It is refused, or its trace has numpy's value there, too.
"""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from everyformer.errors import ExpressionError
from everyformer.targets.trace import trace

RARE = 0.34567
FORTRAN = np.asfortranarray(np.arange(1.0, 5.0).reshape(2, 2))


def rare(x: Any) -> Any:
    return np.abs(x - RARE) < 1e-9


def counted(x: Any, most: int) -> Any:
    """Integers: so many where x is rare, else 0."""
    return rare(x) * most


def second_of_broadcast(x: Any) -> Any:
    _, counts = np.broadcast_arrays(x, counted(x, 2**40))
    return x + counts * 2**40


def second_of_atleast(x: Any) -> Any:
    _, counts = np.atleast_1d(rare(x), counted(x, 2**40))
    return x + counts * 2**40


def written_to_second(x: Any) -> Any:
    _, counts = np.atleast_1d(x, counted(x, 1))
    counts[...] = np.where(rare(x), 0.5, 0.0)
    return x + counts


def sum_out(x: Any) -> Any:
    y = np.zeros_like(x)
    np.add(counted(x, 2**62), counted(x, 2**62), out=y)
    return x + y


def product_out(x: Any) -> Any:
    y = np.zeros_like(x)
    np.multiply(counted(x, 4), 2**62, out=y)
    return x + y


def range_of_integers(x: Any) -> Any:
    return x + (rare(x) * range(2**61, 2**61 + 2)) * 8


def choice_of_a_range(x: Any) -> Any:
    return x + np.where(rare(x), range(2**61, 2**61 + 2), 0) * 8


def bytes_of_numbers(x: Any) -> Any:
    return x + (rare(x) * bytearray([200, 200]) + 100)


def square_of_truths(x: Any) -> Any:
    return x + (rare(x) ** 2 * 100 + 100)


def inserted_fraction(x: Any) -> Any:
    halves = array("d", [2.5, 2.5])
    there: Any = np.insert(counted(x, 1), 0, halves, axis=-2)[..., :2, :]
    return np.where(rare(x), there, x)


def joined_as_floats(x: Any) -> Any:
    halves = np.concatenate([rare(x[..., :1]), rare(x[..., 1:])], axis=-1, dtype=float)
    itself = halves.astype(float, copy=False)
    itself *= 3.0
    return x + halves


def begins_with_a_half(x: Any) -> Any:
    return x + np.logical_and.reduce(rare(x), axis=-1, keepdims=True, initial=0.5)


def overwritten_unless_copied(x: Any) -> Any:
    y = x.astype(float, copy=False)
    y[rare(x)] = 7.0
    return x


def flattened(z: Any) -> Any:
    """The same as one row: a view or a copy, by the layout of z."""
    return z.reshape(len(z), -1)


def into_a_layout_like(x: Any) -> Any:
    z = np.zeros_like(x.swapaxes(-1, -2))
    row = flattened(z)
    row[rare(flattened(x))] = 7.0
    return x + z


def into_a_given_layout(x: Any) -> Any:
    z = np.zeros_like(x, order="F")
    row = flattened(z)
    row[rare(flattened(x))] = 7.0
    return x + z


def into_a_converted_layout(x: Any) -> Any:
    z = x.astype(float, order="F")
    row = flattened(z)
    row[rare(row)] = 7.0
    return z


def into_sorted(x: Any) -> Any:
    z = np.sort(x.swapaxes(-1, -2))
    row = flattened(z)
    row[rare(row)] = 7.0
    return z


def into_the_layout_of_a_constant(x: Any) -> Any:
    z = x.swapaxes(-1, -2) + 0 * FORTRAN
    row = flattened(z)
    row[rare(row)] = 7.0
    return z


def into_a_selection(x: Any) -> Any:
    t = x.swapaxes(-1, -2)
    z = np.select([t > 0.5], [t], 0.5 * t)
    row = flattened(z)
    row[rare(2 * row)] = 7.0
    return z


def into_joined_truths(x: Any) -> Any:
    y = 0 * x
    np.concatenate([rare(x[..., :1, :]), x[..., 1:, :]], axis=-2, out=y)
    first = y[..., 0]
    first[rare(x[..., 0])] = 7.0
    return x + y


def sums_as_truths(x: Any) -> Any:
    y = x > 2
    np.sum(np.maximum(rare(x) * 1.0, x - 2), axis=-1, out=y[..., 0])
    return x + y


def taken_as_truths(x: Any) -> Any:
    y = x > 2
    np.take(np.where(rare(x), 3.0, 0.0), [1, 0], axis=-1, out=y)
    return x + y


def overwritten_by_a_median(x: Any) -> Any:
    y = np.where(rare(x), x[..., ::-1] - 1, x)
    z = np.where(rare(x).any(-1, keepdims=True), x, 0.5)
    np.median(z, axis=-1, overwrite_input=True)
    return x + y * z


def into_an_interpolation(x: Any) -> Any:
    z = np.interp(x.swapaxes(-1, -2), [0, 1], [0, 1])
    row = flattened(z)
    row[rare(flattened(x.swapaxes(-1, -2)))] = 7.0
    return z


def more_degrees_than_numbers(x: Any) -> Any:
    return np.where(rare(x), np.var(x, axis=-1, ddof=3, keepdims=True), x)


PROGRAMS: tuple[Callable[[Any], Any], ...] = (
    second_of_broadcast, second_of_atleast, written_to_second, sum_out, product_out,
    range_of_integers, choice_of_a_range, bytes_of_numbers, square_of_truths,
    inserted_fraction, joined_as_floats, begins_with_a_half, overwritten_unless_copied,
    into_a_layout_like,
    into_a_given_layout, into_a_converted_layout, into_sorted,
    into_the_layout_of_a_constant, into_a_selection, into_joined_truths,
    into_an_interpolation, sums_as_truths, taken_as_truths, overwritten_by_a_median,
    more_degrees_than_numbers,
)  # fmt: skip


def points() -> np.ndarray:
    """Some with rare entries, at all places."""
    x = np.random.default_rng(0).random((64, 2, 2))
    return np.where(np.random.default_rng(1).random(x.shape) < 0.5, RARE, x)


@pytest.mark.filterwarnings("ignore")  # of degrees of freedom
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_what_the_trace_says_numpy_computes(program: Callable[[Any], Any]) -> None:
    try:
        expression = trace(program, 2, 2, [0, 0], [1, 1])
    except ExpressionError:
        return
    with np.errstate(all="ignore"):
        theirs = program(points())
    np.testing.assert_allclose(expression(points()), theirs, rtol=1e-12, equal_nan=True)


KEPT: dict[str, Callable[[Any], Any]] = {
    "astype without a copy": overwritten_unless_copied,
    "a layout like another": into_a_layout_like,
    "sorted": into_sorted,
    "a selection": into_a_selection,
    "integers from broadcast_arrays": lambda x: x + np.broadcast_arrays(x, x > 1)[1] * 3,
    "a range of small numbers": lambda x: x + rare(x) * range(2),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_known_is_not_refused(name: str) -> None:
    trace(KEPT[name], 2, 2, [0, 0], [1, 1])
