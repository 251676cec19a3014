"""The operator: what it refuses, plans, autocast, `torch.compile`."""

import gc
import weakref
from typing import Any

import pytest
import torch
from tests.ops.sparse_cases import given_tensors, wanted_results

from everyformer import patterns
from everyformer.errors import InputError
from everyformer.ops import sparse_attention
from everyformer.ops.sparse_attention import plans
from everyformer.ops.sparse_attention.pieces import (
    Band,
    BlockLists,
    Edges,
    Listed,
    RingAndRelay,
)
from everyformer.ops.sparse_attention.routes import pieces_of
from everyformer.patterns import Dense, Part, Pattern, Window


@pytest.mark.parametrize(
    ("pattern", "kinds"),
    [
        (patterns.window(64, 3), [Band]),
        (patterns.strided(64, 8), [Band, Band]),
        (patterns.strided(64, 8).union(), [Band, Band]),
        (patterns.fixed(64, 8), [Band, Listed]),
        (patterns.fixed(64, 8).union(), [Band, Listed]),
        (patterns.star(64), [RingAndRelay]),
        (patterns.star(64, 9), [Band, Listed, Listed, Edges]),
        (patterns.star(4), [Band]),  # everybody is a neighbour
        (patterns.window_global(64, 2, 3), [Band, Listed, Listed]),
        (patterns.big_bird_blocks(64, 16), [BlockLists]),
        (patterns.big_bird_blocks(64, 4), [Edges]),
        (patterns.big_bird(64, 3, 2, 1), [Band, Listed, Listed, Edges]),
        (patterns.dilated(64, 2, 3), [Band]),
        (patterns.random(64, 3), [Edges]),
        (patterns.ring(64), [Edges]),
    ],
)
def test_routes(pattern: Pattern, kinds: list[type]) -> None:
    found = [piece for part in pattern.parts for piece in pieces_of(part)]
    assert [type(piece) for piece in found] == kinds


def test_an_unknown_kind_is_refused() -> None:
    class Odd(Window):
        pass

    class Strange(Part):
        def _make_rows(self) -> patterns.Rows:
            return Dense(self.n).rows()

    try:
        assert [type(piece) for piece in pieces_of(Odd(3, 1, 1))] == [Band]
        with pytest.raises(InputError, match=r"no way to run a Strange. List its pairs"):
            pieces_of(Strange(3))
    finally:
        del Part.kinds["Odd"], Part.kinds["Strange"]


@pytest.mark.unhooked
@pytest.mark.parametrize("given", [patterns.strided(8, 2), None, 8])
def test_what_is_no_part_is_refused(given: Any) -> None:
    q = torch.zeros(1, 1, 8, 4)
    with pytest.raises(
        InputError, match=rf"part is a {type(given).__name__}; give the sets"
    ):
        sparse_attention(q, q, q, given)


def test_refusals_name_all_reasons() -> None:
    q = torch.zeros(2, 1, 5, 4)
    with pytest.raises(InputError, match=r"there are 5 tokens, but the pattern is for n=6"):
        sparse_attention(q, q, q, Dense(6))
    with pytest.raises(InputError, match="they must all be"):
        sparse_attention(q, q[:, :, :4], q, Dense(5))
    with pytest.raises(InputError, match=r"dtypes .* give one kind; key_padding has shape"):
        sparse_attention(q, q.double(), q, Dense(5), key_padding=torch.zeros(2, 4).bool())
    with pytest.raises(InputError, match="is empty"):
        sparse_attention(q[:0], q[:0], q[:0], Dense(5))


def test_a_plan_is_made_once_and_dropped_with_its_part() -> None:
    part = patterns.random(20, 3).parts[0]
    q = torch.randn(1, 1, 20, 4)
    sparse_attention(q, q, q, part)
    plan = plans.plan_of(part)
    assert plans.plan_of(part) is plan
    assert plans.plan_with(plan.handle) is plan
    watched, handle = weakref.ref(plan), plan.handle
    del part, plan
    gc.collect()
    assert watched() is None
    with pytest.raises(InputError, match="which this process does not know"):
        plans.plan_with(handle)


def test_a_plan_is_known_by_its_content() -> None:
    """So a graph from another process finds its own pattern, or none."""
    made = (Window(9, 1, 1), Window(9, 1, 2), Window(10, 1, 1), patterns.Star(9, 1))
    listed = (patterns.random(9, 2, seed).parts[0] for seed in (0, 1))
    numbers = [plans.plan_of(part).handle for part in (*made, *listed)]
    assert len(set(numbers)) == len(numbers)
    same = Window(9, 1, 1)
    assert plans.plan_of(same) is plans.plan_of(made[0])
    assert plans.plan_of(same).handle == 6427187851513764162


def test_shapes_alone() -> None:
    q = torch.empty(1, 2, 9, 4, device="meta")
    assert sparse_attention(q, q, q, Window(9, 1, 1)).shape == q.shape


def test_autocast() -> None:
    x = given_tensors(9, d=4).to(torch.float32)
    part = Window(9, 2, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = sparse_attention(x.q, x.k, x.v, part, scale=0.7, need_lse=True)
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    assert (out.double() - wanted_results(x, part)["out"]).abs().max() < 0.05
