"""Bose-Chowla sets: sums name multisets; other codes are caught."""

from itertools import combinations_with_replacement
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.construct.averaging.codes import bose_chowla, prime_from
from everyformer.errors import GridError


def find_collision(
    code: np.ndarray, n: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Two different multisets of n symbols with the same sum, or None for a B_n set."""
    seen: dict[int, tuple[int, ...]] = {}
    values = [int(value) for value in code]
    for symbols in combinations_with_replacement(range(len(values)), n):
        total = sum(values[s] for s in symbols)
        if total in seen:
            return seen[total], symbols
        seen[total] = symbols
    return None


@pytest.mark.parametrize(("V", "n", "bits"), [(23, 4, 20.2), (32, 3, 17.3), (16, 2, 10)])
def test_all_sums_are_distinct_and_short(V: int, n: int, bits: float) -> None:
    code = bose_chowla(V, n)
    assert len(set(code.tolist())) == V
    assert find_collision(code, n) is None
    assert n * code.max() <= min(n * (prime_from(V) ** n - 2), 2**bits)


def test_the_count_of_the_specification() -> None:
    assert comb(23 + 3, 4) == 14_950


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 7), st.integers(1, 3))
def test_small_alphabets(V: int, n: int) -> None:
    code = bose_chowla(V, n)
    assert len(code) == V
    assert find_collision(code, n) is None


def test_a_code_that_is_none_is_named() -> None:
    code = bose_chowla(8, 3)
    code[4] = code[3]
    found = find_collision(code, 3)
    assert found is not None
    first, second = found
    assert first != second
    assert code[list(first)].sum() == code[list(second)].sum()


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(GridError, match=r"64 symbols and 8 tokens.*coarser"):
        bose_chowla(64, 8)


def test_one_token_needs_no_code() -> None:
    assert (bose_chowla(5, 1) == np.arange(5)).all()
