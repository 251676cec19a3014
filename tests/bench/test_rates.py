"""Orders of Theorem 2 against d/p, and the share of cells that it gives up."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.bench import rates
from everyformer.errors import EveryformerError
from everyformer.targets.box import Box, Grid


@pytest.mark.parametrize(
    ("K", "n", "d"), [(2, 1, 1), (2, 3, 1), (3, 3, 1), (2, 2, 2), (3, 2, 2)]
)
def test_the_share_of_repeated_columns_is_counted_cell_by_cell(
    K: int, n: int, d: int
) -> None:
    grid = Grid(K, n, Box((0.0,) * d, (1.0,) * d))
    cells = list(product(range(K**d), repeat=n))
    repeated = sum(len(set(cell)) < n for cell in cells)
    assert grid.repeated_share == Fraction(repeated, len(cells))


def test_the_share_lies_between_its_bounds() -> None:
    """binom(n, 2) delta^d - binom(n, 2)^2 delta^2d <= share <= binom(n, 2) delta^d."""
    for K, n, d in product((2, 5, 64), (2, 3, 5), (1, 2, 3)):
        share = Grid(K, n, Box((0.0,) * d, (1.0,) * d)).repeated_share
        pairs = comb(n, 2) * Fraction(1, K**d)
        assert pairs - pairs**2 <= share <= pairs


def test_a_plan_names_the_share() -> None:
    plan = ef.plan(ef.targets.centring(3, 1), 8)
    assert plan.to_json()["repeated_share"] == "11/32"
    assert dict(plan.rows())["cells with equal columns, given up"] == "34.38 %"
    positional = ef.plan(ef.targets.sort(3, 1), 8)
    assert positional.to_json()["repeated_share"] is None
    assert not any("equal columns" in name for name, _ in positional.rows())


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    patched = pytest.MonkeyPatch()
    patched.setattr(rates, "SAMPLES", 1024)
    found = rates.run(quick=True)
    patched.undo()
    return found


def test_duplicates_have_order_d_over_p(report: dict[str, Any]) -> None:
    assert [(row["d"], row["p"]) for row in report["rows"]] == [
        (d, p) for d in (1, 2) for p in (1, 2, 4)
    ]
    for row in report["rows"]:
        order = row["d"] / row["p"]
        assert row["duplicates_order_sampled"] == pytest.approx(order, rel=0.1), row
        # On grids as coarse as these the proof of f's range still improves with K.
        assert row["duplicates_order_certified"] == pytest.approx(order, abs=0.15), row
        assert all(
            seen <= proved
            for proved, seen in zip(
                row["duplicates_bound"], row["duplicates_sampled"], strict=True
            )
        )
    assert report["rows"][0]["repeated_share"] == ["1/4", "1/8", "1/16"]
    assert report["rows"][3]["repeated_share"] == ["1/4", "1/16"]


def test_the_table_and_the_picture(report: dict[str, Any], tmp_path: Path) -> None:
    assert rates.table(report).row_count == 6
    rates.picture(report, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 10_000


def test_a_network_that_is_off_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: what is sampled is another function than what was certified."""
    built = ef.construct(rates.lamp(1), grid=4, method=ef.SelectiveShifts())
    assert set(rates.measured(built)) == {1, 2, 4}

    def moved(built: ef.Built, x: np.ndarray) -> np.ndarray:
        return np.abs(built.network(x) - built.target(x)) + 1

    monkeypatch.setattr(rates, "_gaps", moved)
    with pytest.raises(EveryformerError, match="at samples, certified"):
        rates.measured(replace(built))
