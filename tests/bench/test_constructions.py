"""The table of constructions: what is measured, and that nothing wrong is reported."""

import numpy as np
import pytest

from everyformer.bench import constructions
from everyformer.construct import table_error
from everyformer.construct.pipeline import compare
from everyformer.errors import EveryformerError
from everyformer.targets import reverse
from everyformer.targets.target import Target


def test_a_method_is_built_and_certified() -> None:
    target = reverse(2, 1)
    found = compare(target, 0.1)
    rows = {
        method: constructions._measure(target, found, method)  # pyright: ignore[reportPrivateUsage]
        for method in ("Yun et al.", "partition of unity")
    }
    for row in rows.values():
        assert row["refusal"] is None
        assert float(row["certified_bound"]) <= 0.1
        assert row["run_one_s"] > 0
    report = {"rows": [{"target": "reverse", "tol": 0.1, **row} for row in rows.values()]}
    assert constructions.saving(constructions.by_case(report)["reverse", 0.1]) == (
        rows["Yun et al."]["parameters"] / rows["partition of unity"]["parameters"]
    )


def test_a_method_that_does_not_reach_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_error, "MAX_CELLS", 1000)
    found = compare(reverse(2, 1), 1e-3)
    row = constructions._measure(reverse(2, 1), found, "Yun et al.")  # pyright: ignore[reportPrivateUsage]
    assert "best bound" in row["refusal"]
    assert "parameters" not in row


def test_orders_are_fitted_and_the_sharp_softmax_loses_one() -> None:
    report = constructions.orders(constructions.wave(), (8, 16))["methods"]
    sampled = {name: way["order_sampled"] for name, way in report.items()}
    assert sampled["Yun et al., Theorem 3"] == pytest.approx(1, abs=0.15)
    assert sampled["averaging, wide"] == pytest.approx(1, abs=0.15)
    assert sampled["partition of unity, D = 1"] == pytest.approx(2, abs=0.15)
    assert sampled["partition of unity, D = 200"] == pytest.approx(1, abs=0.15)


def test_a_bound_below_what_is_sampled_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: f is moved after the certificates were made."""
    target = constructions.wave()
    plain = Target.__call__
    moved = iter([1.0, *[0.0] * 100])

    def shifted(self: Target, x: np.ndarray) -> np.ndarray:
        return plain(self, x) + next(moved)

    monkeypatch.setattr(Target, "__call__", shifted)
    with pytest.raises(EveryformerError, match="at samples, certified"):
        constructions.orders(target, (8,))
