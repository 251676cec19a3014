"""`everyformer bench residual`: Section 5.4, built and certified."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from everyformer.bench import residual
from everyformer.construct.residual import ResidualNetwork
from everyformer.errors import EveryformerError


def test_ratios_fall_to_constants_and_bounds_with_the_grid(tmp_path: Path) -> None:
    report = residual.run(quick=True)
    rows = report["rows"]
    assert [row["K"] for row in rows] == [2, 4, 8]
    for kind, limit in (("transformer", 46), ("residual", 2.5)):
        ratios = [row[kind] / row["lower_bound"] for row in rows]
        assert limit < ratios[-1] < min(ratios[0], 2.3 * limit)
        bounds = [row[f"{kind}_bound"] for row in rows]
        assert bounds[0] / bounds[-1] == pytest.approx(4, rel=0.2)
    assert residual.table(report).row_count == 3
    residual.picture(report, tmp_path / "residual.png")
    assert (tmp_path / "residual.png").stat().st_size > 10_000


def test_samples_above_the_bound_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    proper = ResidualNetwork.prove

    def smaller(network: ResidualNetwork, *given: Any) -> Any:
        found = proper(network, *given)
        assert found.real is not None
        return replace(found, real=replace(found.real, value=Fraction(1, 1000)))

    monkeypatch.setattr(ResidualNetwork, "prove", smaller)
    with pytest.raises(EveryformerError, match="K=2: certified"):
        residual.measured(residual.ripple(2, 1), 2)
