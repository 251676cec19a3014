"""A tiny BERT beside Hugging Face's, and that nothing wrong is timed."""

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from everyformer.bench import bert
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.models.encoder import Encoder
from everyformer.train.objectives.masked import MaskedLanguage
from everyformer.train.throughput import training_flops

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_all_contenders_do_the_same_work() -> None:
    report = bert.run(profile=True)
    ours, masked, whole = report["rows"]
    assert ours["gradient_error_sampled"] < 1e-5, "float32 against itself"
    for row in report["rows"]:
        assert row["loss_sampled"] == pytest.approx(4.6 + 0.7, abs=0.5), row
    assert masked["loss_sampled"] == pytest.approx(whole["loss_sampled"], abs=1e-5)
    for row in (masked, whole):
        ratio = row["step_ms_sampled"] / ours["step_ms_sampled"]
        assert row["ours_over_theirs_sampled"] == pytest.approx(ratio)
        sizes = bert.MaskedLanguage(Encoder(bert.TINY))
        more = 2 * bert.TINY.dim  # our pre-norm encoder ends with a norm
        assert sum(p.numel() for p in sizes.parameters()) == row["parameters"] + more
    assert "Self CPU" in report["profile"]
    told = io.StringIO()
    Console(file=told, width=140).print(bert.table(report))
    assert f"{masked['ours_over_theirs_sampled']:.2f}" in told.getvalue()


def test_the_count_is_that_of_pytorch() -> None:
    objective = MaskedLanguage(Encoder(bert.TINY))
    for part in objective.modules():
        if isinstance(part, RelativeAttention):
            part.implementation = "reference"
    task = bert.RandomWindows(bert.TINY)
    batch = task.batch("train", task.draw(0, 1, 0, 1, torch.device("cpu")))
    with FlopCounterMode(display=False) as counter:
        objective(batch).sum().backward()
    assert counter.get_total_flops() == training_flops(objective, 16, task.masked)


def test_what_is_wrong_or_missing_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        return None

    monkeypatch.setattr(bert, "find_spec", missing)
    monkeypatch.setattr(bert, "TOLERANCE", -1.0)
    failed = [row["failed"] for row in bert.run()["rows"]]
    assert "it is not timed" in failed[0]
    assert failed[1:] == ["transformers is not installed"] * 2
    monkeypatch.setattr(bert, "TIME_LIMIT", -1.0)
    assert {row["failed"] for row in bert.run()["rows"]} == {"not begun: the time limit"}


def test_windows_are_fresh_and_masks_differ() -> None:
    task = bert.RandomWindows(bert.NARROW)
    batch = task.batch("train", task.draw(3, 8, 1, 2, torch.device("cpu")))
    assert batch.places is not None
    assert batch.places.shape == batch.labels.shape == (4, 19)
    assert all(len(set(row)) == 19 for row in batch.places.tolist())
    assert len({tuple(row) for row in batch.tokens.tolist()}) == 4
