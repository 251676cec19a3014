"""BigBird's star in exact integers: ids never collide, f_0 sometimes does."""

import pytest
from tests.construct.shifts.star_ids import all_star_ids, star_ids, starting_scalars

from everyformer.errors import GridError

SIZES = [
    (2, 1, 2),
    (2, 1, 3),
    (2, 2, 2),
    (3, 1, 2),
    (3, 1, 3),
    (3, 2, 2),
    (4, 1, 2),
    (4, 1, 3),
    (5, 1, 2),
    (6, 1, 2),
]
F_0_COLLIDES = {(3, 1, 2): 7, (5, 1, 2): 31}


@pytest.mark.parametrize(("n", "d", "K"), SIZES)
def test_ids_are_distinct_and_f_0_as_specified(n: int, d: int, K: int) -> None:
    found = list(all_star_ids(n, d, K))
    sequences = K ** (n * d)
    assert len(found) == sequences
    assert len({one for each in found for one in each.ids}) == n * sequences
    distinct = len({each.centre[-1] for each in found})
    assert distinct == F_0_COLLIDES.get((n, d, K), sequences)


@pytest.mark.parametrize(("n", "d", "K"), [(3, 1, 3), (4, 1, 2), (3, 2, 2)])
def test_recursion_of_f_0_is_the_mended_one(n: int, d: int, K: int) -> None:
    """As printed, -(K^(nd+d) + K^(nd)) l_k - l_(k+1), it is wrong."""
    columns = tuple((3 * k + 1) % K**d for k in range(n))
    found, (_, low) = star_ids(columns, d, K), starting_scalars(columns, d, K)
    big, bigger = K ** (n * d), K ** ((n + 1) * d)
    for k in range(n - 1):
        f_0 = found.centre[k]
        mended = (1 + bigger) * f_0 - (bigger - big) * low[k] - big * low[k + 1]
        printed = (1 + bigger) * f_0 - (bigger + big) * low[k] - low[k + 1]
        assert found.centre[k + 1] == mended != printed
    last = big * (found.tokens[-1] - found.tokens[0])
    assert found.centre[n] == found.centre[n - 1] + last


def test_without_the_last_shift_the_ids_of_token_one_collide() -> None:
    found = list(all_star_ids(3, 1, 2))
    assert len({each.tokens[0] for each in found}) < len(found)


def test_columns_outside_the_grid_are_refused() -> None:
    with pytest.raises(GridError, match=r"columns in 0\.\.K\^d-1"):
        star_ids((0, 2), d=1, K=2)
    with pytest.raises(GridError, match="K >= 2"):
        star_ids((0, 0), d=1, K=1)
