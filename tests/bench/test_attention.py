"""`bench attention`: lengths are kept, and what is resumed is checked again."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from everyformer.bench import attention
from everyformer.bench.kept import Kept
from everyformer.errors import EveryformerError


def test_lengths_are_kept_and_gates_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "CPU_SHAPES", (attention.Shape(1, 33, 2, 8),))
    path = tmp_path / "rows.jsonl"
    report = attention.run(quick=True, kept=Kept(path))
    assert [row["name"] for row in report["rows"]] == ["ours", "ours, frozen", "eager"]
    assert attention.table(report).row_count == 3
    again = attention.run(quick=True, kept=Kept(path, resume=True))
    assert again["rows"] == report["rows"]
    assert again["earlier_starts"] == [report["environment"]]

    def without_gain(*given: Tensor, **more: Any) -> Tensor:
        return attention.toeplitz_attention(*given[:4], **more) + 0 * given[4].sum()

    monkeypatch.setattr(attention, "_ours", without_gain)
    with pytest.raises(EveryformerError, match="Toeplitz attention fails its gate"):
        attention.run(quick=True, kept=Kept(path, resume=True))
