"""Staircases: the formula, the hull property, and layers of any width."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyformer.construct.staircase import Units, lookup, staircase
from everyformer.model.forward import feed_forward_layer

ONE, NEXT = np.array([1.0, 0.0]), np.array([[0.0, 1.0]])


def apply(units: Units, t: np.ndarray, d_ff: int | None = None) -> np.ndarray:
    stack = units.layers(d_ff)
    state = np.stack([t, np.zeros_like(t)], axis=-1)[:, None, :]
    for layer in range(stack.layers):
        state = feed_forward_layer(stack, layer, state)
    return state[:, 0, 1]


tables = st.lists(st.integers(-50, 50), min_size=2, max_size=9)


@given(tables, st.data())
def test_off_the_ramps_it_is_the_table_and_on_them_between_neighbours(
    values: list[int], data: st.DataObject
) -> None:
    column = np.array(values, dtype=np.float64)[:, None]
    thresholds = np.arange(1, len(values), dtype=np.float64)
    units = staircase(ONE, NEXT, thresholds, column, Fraction(1, 8))
    t = np.array(data.draw(st.lists(st.integers(-16, 160), min_size=1))) / 16
    for d_ff in (None, 2, 4):
        found = apply(units, t, d_ff)
        cell = np.clip(np.floor(t), 0, len(values) - 1).astype(int)
        nearest = np.abs(t[:, None] - thresholds).min(axis=1)
        off = nearest >= 1 / 16
        assert (found[off] == column[cell[off], 0]).all()
        below = column[np.clip(np.round(t).astype(int) - 1, 0, len(values) - 1), 0]
        above = column[np.clip(np.round(t).astype(int), 0, len(values) - 1), 0]
        assert (found >= np.minimum(below, above) - 1e-9).all()
        assert (found <= np.maximum(below, above) + 1e-9).all()


def test_a_look_up_tolerates_three_eighths() -> None:
    keys = np.array([-3, 0, 1, 7])
    values = np.array([[5.0], [2.0], [-1.0], [9.0]])
    units = lookup(ONE, NEXT, keys, values)
    for error in (-0.375, 0.0, 0.375):
        assert (apply(units, keys + error) == values[:, 0]).all()
    assert (apply(units, keys[1:2] + 0.5) != values[1, 0]).all()


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"ramps overlap.*narrower"):
        staircase(ONE, NEXT, np.array([0.0, 0.1]), np.zeros((3, 1)), Fraction(1, 4))
    with pytest.raises(ValueError, match="2 thresholds separate 3 values"):
        staircase(ONE, NEXT, np.array([0.0, 1.0]), np.zeros((2, 1)), Fraction(1, 4))
