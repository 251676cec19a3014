"""Which entry of a table an offset has, and the two ways between offsets and keys."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.layers.plain import tokens

from everyformer.errors import InputError
from everyformer.layers import Exact, LogBuckets, T5Buckets
from everyformer.layers.offsets import by_offset, collect_offsets, spread_offsets


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3))
def test_exact_entries_of_the_last_queries(n_q: int, more: int, spare: int) -> None:
    n_k = n_q + more - 1
    index = Exact(n_k + spare)
    table = tokens(2, index.size)
    vector = by_offset(table, index, n_q, n_k)
    matrix = spread_offsets(vector[:, None].expand(-1, n_q, -1), n_k)
    for a in range(n_q):
        i = n_k - n_q + a
        for j in range(n_k):
            assert torch.equal(matrix[:, a, j], table[:, i - j + index.max_len - 1])


@given(st.integers(1, 5), st.integers(1, 5), st.integers(-4, 4), st.booleans())
def test_queries_at_any_place(n_q: int, n_k: int, offset: int, clamp: bool) -> None:
    index = Exact(3, clamp=True) if clamp else Exact(10)
    table = tokens(2, index.size)
    vector = by_offset(table, index, n_q, n_k, offset)
    matrix = spread_offsets(vector[:, None].expand(-1, n_q, -1), n_k)
    for i in range(n_q):
        for j in range(n_k):
            entry = int(index(torch.tensor([i + offset - j]))[0])
            assert torch.equal(matrix[:, i, j], table[:, entry])


def test_offsets_beyond_the_table_are_refused_on_both_sides() -> None:
    table = tokens(1, 5)  # max_len 3: offsets -2..2
    for n_q, n_k, offset in ((1, 1, 2), (1, 3, 0), (3, 1, 0), (2, 3, 1)):
        by_offset(table, Exact(3), n_q, n_k, offset)
    for n_q, n_k, offset in ((1, 1, 3), (1, 1, -3), (1, 3, -1), (3, 1, 1), (2, 3, 2)):
        with pytest.raises(InputError, match="no entry for offsets beyond 2"):
            by_offset(table, Exact(3), n_q, n_k, offset)


def test_clamped_offsets_take_the_last_entry() -> None:
    table = tokens(1, 5)  # max_len 3: offsets -2..2
    vector = by_offset(table, Exact(3, clamp=True), 5)
    wanted = [0, 0, 0, 1, 2, 3, 4, 4, 4]
    assert torch.equal(vector, table[:, wanted])
    assert torch.equal(by_offset(table, Exact(3, clamp=True), 2), table[:, 1:4])


@given(st.integers(1, 7), st.integers(1, 7))
def test_collecting_is_the_transpose_of_spreading(n_q: int, n_k: int) -> None:
    by, weights = tokens(3, n_q, n_q + n_k - 1), tokens(3, n_q, n_k, seed=2)
    one = (spread_offsets(by, n_k) * weights).sum()
    two = (by * collect_offsets(weights)).sum()
    assert abs(float(one - two)) < 1e-12


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (64, 128), (8, 20), (5, 7)])
def test_t5_buckets_are_monotone_and_end(
    buckets: int, distance: int, bidirectional: bool
) -> None:
    index = T5Buckets(buckets, distance, bidirectional)
    one_way = buckets // 2 if bidirectional else buckets
    past = index(torch.arange(0, 3 * distance)).tolist()
    assert past[: one_way // 2] == list(range(one_way // 2))
    assert past == sorted(past)
    assert past[-1] == past[distance] == one_way - 1
    future = index(-torch.arange(1, 3 * distance)).tolist()
    shifted = [b + one_way for b in past[1:]] if bidirectional else [0] * len(future)
    assert future == shifted


@pytest.mark.parametrize(("buckets", "distance"), [(256, 512), (8, 30), (4, 8)])
def test_log_buckets_are_odd_and_end(buckets: int, distance: int) -> None:
    index = LogBuckets(buckets, distance)
    past = index(torch.arange(0, 2 * distance)) - (buckets - 1)
    future = index(-torch.arange(0, 2 * distance)) - (buckets - 1)
    assert torch.equal(past, -future)
    half = buckets // 2
    assert past[: half + 1].tolist() == list(range(half + 1))
    assert past[distance - 1] == past[-1] == buckets - 1
    for t in range(half + 1, distance):
        exact = math.log(t / half) / math.log((distance - 1) / half) * (half - 1) + half
        assert exact - 1e-3 <= int(past[t]) < exact + 1 + 1e-3


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Exact(0),
        lambda: Exact(True),
        lambda: T5Buckets(2, 128),
        lambda: T5Buckets(32, 8),
        lambda: LogBuckets(7, 100),
        lambda: LogBuckets(256, 100),
    ],
)
def test_refused_sizes(bad: object) -> None:
    assert callable(bad)
    with pytest.raises(InputError, match=r"Use|Give"):
        bad()


def test_refused_length() -> None:
    with pytest.raises(InputError, match=r"9 tokens.*max_len=8.*clamp=True"):
        by_offset(tokens(1, 15), Exact(8), 9)
