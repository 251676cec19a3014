"""Training steps are timed, after the gate, and shown."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from everyformer.bench import training
from everyformer.errors import EveryformerError
from everyformer.layers.models.encoder import Encoder
from everyformer.train.throughput import training_flops


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_report_with_shares(tmp_path: Path) -> None:
    report = training.run()
    assert [row["model"] for row in report["rows"]] == ["tiny", "tiny, URPE"]
    for row in report["rows"]:
        done = row["flops"] / row["step_ms_sampled"] * 1e3
        assert row["flops_per_s_sampled"] == pytest.approx(done)
        assert row["share_sampled"] == pytest.approx(done / report["matrix_rate_sampled"])
    tiny = training.ON_CPU[0]
    masked = round(0.15 * 32)
    per_sequence = training_flops(Encoder(tiny.config), 32, head_tokens=masked)
    assert report["rows"][0]["flops"] == 4 * per_sequence
    console = Console(width=120, record=True)
    console.print(training.table(report))
    assert "tiny, URPE" in console.export_text()
    training.picture(report, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 5000


def test_a_wrong_loss_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TOLERANCE", -1.0)
    report = training.run(quick=True)
    assert "it is not timed" in report["rows"][0]["failed"]


def test_an_encoder_without_a_head_is_refused() -> None:
    headless = training.MaskedTokens(Encoder(replace(training.TINY, head="none")))
    some = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(EveryformerError, match="no head to train"):
        headless(some, some[0], some[0])
