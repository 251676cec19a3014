"""Any table at all: random values, sizes and boxes, every cell, every executor."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plans import constants_of, table_of

import everyformer as ef
from everyformer.construct.shifts.contextual import contextual_ids
from everyformer.construct.shifts.value import plan_values
from everyformer.model.execute.folded import NotFoldableError
from everyformer.targets.target import Target

SIZES = [
    *((2, 1, 2), (2, 1, 4), (2, 1, 8), (3, 1, 2), (3, 1, 4), (2, 2, 2)),
    *((1, 1, 4), (1, 2, 4)),
]


def random_target(
    size: tuple[int, int, int], seed: int, exponent: int, equivariant: bool, unit: bool
) -> Target:
    """A target that looks its values up in a random table of cells."""
    n, d, K = size
    rng = np.random.default_rng(seed)
    lows = rng.uniform(-5, 5, d).round(3)
    widths = rng.uniform(0.1, 20, d).round(3)
    if unit:
        lows, widths = np.zeros(d), np.ones(d)
    values = 10.0**exponent * rng.normal(size=(K ** (n * d), n, d))
    values[rng.random(len(values)) < 0.1] = 0

    def look_up(x: np.ndarray) -> np.ndarray:
        cells = np.clip(np.floor((x - lows) / widths * K), 0, K - 1).astype(int)
        columns = cells @ K ** np.arange(d)
        order = np.argsort(columns, axis=-1) if equivariant else np.arange(n)[None]
        order = np.broadcast_to(order, columns.shape)
        ordered = np.take_along_axis(columns, order, axis=-1)
        found = values[ordered @ (K**d) ** np.arange(n)]
        result = np.empty_like(x)
        np.put_along_axis(result, order[..., None], found, axis=-2)
        return result

    box: Any = list(zip(lows.tolist(), (lows + widths).tolist(), strict=True))
    return Target(look_up, n, d, equivariant=equivariant, domain=box)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(SIZES),
    st.integers(0, 10**9),
    st.integers(-12, 12),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_every_cell_of_every_table(
    size: tuple[int, int, int],
    seed: int,
    exponent: int,
    equivariant: bool,
    unit: bool,
    softened: bool,
) -> None:
    K = size[2]
    target = random_target(size, seed, exponent, equivariant, unit)
    if target.equivariant and target.seq_len > K**target.d_model:
        return  # no cell has different columns: refused, see test_plan
    built = ef.construct(target, grid=K, method=ef.SelectiveShifts(softened=softened))
    c = constants_of(built.plan)
    columns = c.grid.all_sequences()
    x = c.grid.centres(columns)
    expected = target(x)
    if not c.positional:
        ordered = np.sort(columns, axis=-1)
        expected[(ordered[:, 1:] == ordered[:, :-1]).any(axis=-1)] = 0
    y = built.network(x)
    largest = np.abs(expected).max()
    # Values are written over codes (or, in one pass, over ids of at most 2^13), after large
    # ones were scaled down: rounding is scaled up with them.
    scale = 0
    if softened:
        scale = plan_values(
            c, table_of(built), contextual_ids(c, table_of(built).columns)
        ).scale
    rounding = 2.0 ** (scale - 52) * (built.cost.blocks + 2**13)
    assert np.abs(y - expected).max() <= rounding + 2.0**-50 * largest
    if not softened:
        return
    assert np.array_equal(built.network(x, executor="reference"), y)
    if c.value_passes == 2 and c.n > 1:
        assert np.array_equal(built.network(x, executor="folded"), y)
    else:  # too small to be folded
        with pytest.raises(NotFoldableError):
            built.network(x, executor="folded")
