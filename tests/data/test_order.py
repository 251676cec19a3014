"""Orders of epochs: permutations, all different, computed place by place."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.data.order import Order
from everyformer.errors import InputError


def whole(order: Order, epoch: int) -> list[int]:
    places = torch.arange(order.count)
    return order.at(torch.full_like(places, epoch), places).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000, 57_176, 57_179])
def test_every_number_stands_once(count: int) -> None:
    for key in (0, -5):
        orders = [whole(Order(count, key), epoch) for epoch in range(3)]
        assert all(sorted(order) == list(range(count)) for order in orders)
        assert count < 7 or orders[0] != orders[1] != orders[2] != list(range(count))


@given(st.integers(1, 400), st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_walks_end_within_their_bound(count: int, key: int, epoch: int) -> None:
    assert sorted(whole(Order(count, key), epoch)) == list(range(count))


def test_few_cells_are_beyond_the_numbers() -> None:
    """So a walk is short."""
    counts = [*range(100_000, 100_400), 380_873, 2_146_999_999]
    beyond = [a * b - n for n in counts for a, b in [Order(n, 0).table]]
    assert max(beyond) <= 8
    assert sum(beyond) < len(beyond)


def test_a_walk_that_is_one_too_short_is_seen() -> None:
    """The control: without walking, some numbers are beyond the last."""
    order = Order(59, 1)
    a, b = order.table
    places = torch.arange(order.count)
    keys = torch.zeros_like(places)
    seen = [order._permuted(keys + k, places).max().item() for k in range(200)]  # pyright: ignore[reportPrivateUsage]
    assert order.count <= max(seen) < a * b


def test_an_order_is_shuffled() -> None:
    """Neighbours of one epoch are no neighbours, and places of two epochs are unrelated."""
    order = Order(10_000, 3)
    first, second = (torch.tensor(whole(order, epoch)).double() for epoch in (0, 1))
    apart = (first[1:] - first[:-1]).abs()
    assert 3000 < apart.mean().item() < 3700  # N / 3 = 3333
    both = torch.corrcoef(torch.stack([first, second, torch.arange(10_000.0).double()]))
    assert both.fill_diagonal_(0).abs().max().item() < 0.04  # 4 s.e.


@pytest.mark.parametrize("count", [0, -1, 2**31])
def test_counts_without_an_order(count: int) -> None:
    with pytest.raises(InputError, match=f"no order of {count} examples"):
        Order(count, 0)
