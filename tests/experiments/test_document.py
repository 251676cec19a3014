"""The table of runs of several seeds: what is averaged, and what is not."""

from dataclasses import replace
from typing import Any

from everyformer.experiments.document import seeded_table
from everyformer.experiments.registry import URPE_ZINC


def run(seed: int, value: float, **train: Any) -> dict[str, Any]:
    settings = {"train": {"steps": 9, "seed": seed, **train}, "task": {"seed": seed}}
    return {
        "labels": {"task": "zinc12k", "arm": "graphormer", "seed": seed},
        "settings": settings, "value_sampled": value, "standard_error_sampled": 0.5,
        "complete": True, "more": {"steps": settings["train"]["steps"]},
    }  # fmt: skip


def test_runs_of_other_settings_are_not_averaged() -> None:
    """Seeds 0 and 1 as asked for, and seed 2 with fewer updates: no one mean."""
    experiment = replace(URPE_ZINC, columns={"steps": "updates"}, conditions=None)
    same = [run(0, 1.0), run(1, 3.0)]
    _, (row,) = seeded_table(experiment, same, "small")
    assert row[-2:] == ["2.0000 ± 1 (2)", ""]
    _, rows = seeded_table(experiment, [*same, run(2, 8.0, steps=4)], "small")
    assert [one[2:] for one in rows] == [
        ["9", "", "2.0000 ± 1 (2)", ""],
        ["4", "", "8.0000 ± 0.5 (1)", ""],
    ]
