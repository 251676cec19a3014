"""Causal beside two-sided patterns: every row has both, and nothing wrong is timed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer.bench import causal
from everyformer.bench.kept import Kept
from everyformer.errors import EveryformerError


def test_quick_runs_and_its_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: causal.PATTERNS[name] for name in ("window", "fixed")}
    wide = {name: causal.WIDE_PATTERNS[name] for name in ("many columns",)}
    monkeypatch.setattr(causal, "PATTERNS", some)
    monkeypatch.setattr(causal, "WIDE_PATTERNS", wide)
    monkeypatch.setattr(causal, "GATE", 300)
    path = tmp_path / "rows.jsonl"
    report = causal.run(quick=True, kept=Kept(path))
    again = causal.run(quick=True, kept=Kept(path, resume=True))
    assert again["rows"] == report["rows"]
    assert again["earlier_starts"] == [report["environment"]]
    assert [(row["pattern"], row["part"]) for row in report["rows"]] == [
        ("window", 1), ("fixed", 1), ("fixed", 2), ("many columns", 1)
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["causal_connections"] < row["two_sided_connections"]
    assert causal.table(report).row_count == 4

    def ahead(q: Tensor, k: Tensor, v: Tensor, part: Any) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    monkeypatch.setattr(causal, "sparse_attention", ahead)
    with pytest.raises(EveryformerError, match="A causal part fails its gate"):
        causal.run(quick=True)
