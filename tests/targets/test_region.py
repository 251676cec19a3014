"""Regions, intervals for each token, and supports: what is cut, and what is refused."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.errors import EveryformerError, TargetError
from everyformer.targets.box import Grid
from everyformer.targets.region import Region
from everyformer.targets.support import check_support

ENDS = (0.0, 0.25, 0.3, 1.0)


def same(x: np.ndarray) -> np.ndarray:
    return x


@pytest.mark.parametrize("K", [2, 3])
def test_pieces_have_the_volume_of_the_region_for_all_boxes(K: int) -> None:
    """Every box with these ends: pieces are as many, and as large, as counted by hand."""
    intervals = [(a, b) for a in ENDS for b in ENDS if a < b]
    grid = Grid(K, 2, ef.Target(same, 2, 1).domain)
    for first, second in product(intervals, intervals):
        region = Region.of([[[first], [second]]], 2, 1)
        pieces = region.pieces(grid)
        met = 1
        for low, high in (first, second):
            met *= sum(low < Fraction(k + 1, K) and Fraction(k, K) < high for k in range(K))
        assert len(pieces.columns) == met == region.count(grid)
        volume = sum(Fraction(share) for share in pieces.shares.tolist()) / K**2
        assert region.volume <= volume <= region.volume * (1 + Fraction(1, 10**9))
        low, high, below, above = pieces.ends
        assert (low >= np.array([first[0], second[0]])[:, None] - 1e-15).all()
        assert (high <= np.array([first[1], second[1]])[:, None] + 1e-15).all()
        assert ((low < below) & (below <= above) & (above < high)).all()
        assert pieces.whole.sum() == sum(share == 1 for share in pieces.shares)


def test_points_for_tables_lie_in_the_region_and_in_the_cell_where_they_meet() -> None:
    parts = [[[(0, 0.4)], [(0, 1)]], [[(0.4, 0.9)], [(0.1, 0.3)]]]
    region, grid = Region.of(parts, 2, 1), Grid(4, 2, ef.Target(same, 2, 1).domain)
    columns = grid.all_sequences()
    points = region.centres(grid, columns)
    low, high = region.ends
    inside = ((points[:, None] >= low) & (points[:, None] <= high)).all(axis=(2, 3))
    assert np.asarray(inside).sum(axis=1).all()
    met = {tuple(row) for row in region.pieces(grid).columns.tolist()}
    for row, point in zip(columns.tolist(), points, strict=True):
        cell = (point[:, 0] * 4).astype(int).tolist()
        assert cell == row if tuple(row) in met else cell != row


def test_intervals_for_each_token_are_a_region_of_one_box() -> None:
    target = ef.Target(same, 2, 1, domain=[[(0, 1)], [(4, 6)]])
    assert (target.domain.lows, target.domain.highs) == ((0.0,), (6.0,))
    assert target.region == Region.of([[[(0, 1)], [(4, 6)]]], 2, 1)
    assert ef.Target(same, 2, 1, domain=[(0, 1)]).region is None
    drawn = Region.of([[[(0, 1)], [(4, 6)]]], 2, 1).sample(np.random.default_rng(0), 100)
    assert (drawn[:, 0] <= 1).all()
    assert (drawn[:, 1] >= 4).all()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"region": []}, "no cells"),
        ({"region": [[[(0.5, 0.5)], [(0, 1)]]]}, "no cells"),
        ({"region": [[[(0, float("nan"))], [(0, 1)]]]}, "no cells"),
        ({"region": [[[(0, 1)]]]}, "2 rows"),
        ({"region": "ab"}, "not a list of boxes"),
        ({"region": [[[(0, 1)], [(0, 1)]]] * 2}, "overlap"),
        ({"region": [[[(0, 2)], [(0, 1)]]], "domain": [(0, 1)]}, "inside the domain"),
        ({"region": [[[(0, 1)], [(0, 1)]]], "domain": [[(0, 1)], [(0, 1)]]}, "one of the"),
        ({"region": [[[(0, 1)], [(0, 1)]]], "everywhere": True}, "one of the two"),
        ({"domain": [[(0, 1)], [(4, 6)]], "everywhere": True}, "one of the two"),
        ({"region": [[[(k, k + 1)], [(0, 1)]] for k in range(300)]}, "more than 256"),
    ],
)
def test_impossible_domains_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(TargetError, match=why):
        ef.Target(same, 2, 1, **given)


def hat(x: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(2 * x - 1)).prod(axis=-2, keepdims=True) + 0 * x


OUTSIDE: list[tuple[Callable[[np.ndarray], np.ndarray], str]] = [
    (lambda x: x, "on the border"),
    (lambda x: hat(x) + np.maximum(0, x - 1), "outside"),
    (lambda x: hat(x) + np.maximum(0, -x - 2), "outside"),
    (lambda x: hat(x) + 1e-300, "outside"),
    (lambda x: hat(x) + 0 * np.log(x + 0.5), "no values outside"),
]


@pytest.mark.parametrize(("f", "why"), OUTSIDE)
def test_a_support_that_is_not_inside_the_box_is_refused(f: Any, why: str) -> None:
    target = ef.Target(f, 2, 1, everywhere=True)
    with pytest.raises(TargetError, match=why):
        check_support(target)
    with pytest.raises(TargetError, match=why):
        ef.construct(target, grid=2, method="averaging")


def test_a_hat_and_its_widened_box_pass() -> None:
    for domain in ([(0, 1)], [(-3, 2)]):
        check_support(ef.Target(hat, 2, 1, domain=domain, everywhere=True))


@pytest.mark.parametrize("method", ["partition", "compile", "auto"])
def test_methods_that_are_proved_on_boxes_refuse_a_region(method: str) -> None:
    target = ef.Target(same, 2, 1, domain=[[(0, 1)], [(4, 6)]])
    with pytest.raises(TargetError, match="Use method='averaging'"):
        ef.construct(target, tol=0.5, method=method)
    with pytest.raises(TargetError, match="compared on a box"):
        ef.compare(target, 0.5)


def test_selective_shifts_refuse_all_of_space_and_a_region_refuses_no_positions() -> None:
    with pytest.raises(TargetError, match="not proved to be 0 outside"):
        ef.construct(ef.Target(hat, 2, 1, everywhere=True), grid=2)
    target = ef.Target(same, 2, 1, domain=[[(0, 1)], [(1, 2)]], equivariant=True)
    with pytest.raises(EveryformerError, match="permutations of the tokens may leave"):
        ef.construct(target, grid=2, method=ef.Averaging(positional=False))
