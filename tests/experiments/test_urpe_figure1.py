"""Figure 1 under equal conditions."""

from pathlib import Path
from typing import Any

import pytest

from everyformer.errors import TrainingError
from everyformer.experiments.cell import SIZES, conditions_hash
from everyformer.experiments.reproduce import reproduce
from everyformer.experiments.urpe_figure1 import URPE_FIGURE1
from everyformer.experiments.urpe_figure1.cells import cells


@pytest.mark.parametrize("size", SIZES)
def test_all_arms_have_equal_conditions(size: str) -> None:
    """The same updates, rates and sizes; seeds, arms and the rate of tables differ."""
    found = cells(size, [0, 1, 2], {})  # pyright: ignore[reportArgumentType]
    groups: dict[tuple[object, ...], set[str]] = {}
    for cell in found:
        key = tuple(cell.labels[name] for name in ("task", "tokens", "rate"))
        groups.setdefault(key, set()).add(conditions_hash(cell.settings))
    assert {len(hashes) for hashes in groups.values()} == {1}
    trained = [cell.settings["train"] for cell in found]
    assert len({(t["steps"], t["batch"], t["lr"]) for t in trained}) == 1
    assert {t["stop_at"] for t in trained} == {None}, "none ends early"
    assert {t["table_lr"] for t in trained} == {1.0, 20.0}
    assert len({cell.identity for cell in found}) == len(found)


def test_the_size_of_the_paper_has_its_schedule() -> None:
    train = cells("paper", [0], {})[0].settings["train"]
    assert (train["steps"], train["batch"], train["lr"]) == (40_000, 128, 7e-5)
    assert (train["warmup"], train["decay"]) == (6_000, "linear")
    names = {cell.name for cell in cells("paper", [0], {})}
    assert len(names) == 2 * 2 * 3 * 3
    assert "etp/t5/10000/20x/0" in names


def test_a_smoke_run_is_kept_and_drawn(tmp_path: Path) -> None:
    places: dict[str, Any] = {"out": tmp_path, "runs": tmp_path / "runs"}
    path = reproduce(URPE_FIGURE1, "smoke", **places, only=["etp/*/1x/0", "etp/t5/*"])
    shown = path.with_suffix(".md").read_text()
    assert shown.count("| etp") == 4
    assert "tables 20 times that" in shown
    assert path.with_suffix(".png").stat().st_size > 5_000
    with pytest.raises(TrainingError, match="Leave out --data"):
        URPE_FIGURE1.cells("smoke", [0], {}, tmp_path)
