"""`bench models`: right first, then timed; what is not known is refused or reported."""

import time
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional

from everyformer.bench import models
from everyformer.bench.kept import Kept
from everyformer.bench.model_configs import batch_of, build
from everyformer.bench.timing import kernel_milliseconds
from everyformer.errors import InputError
from everyformer.layers.hugging_face import attend

pytest.importorskip("transformers")


def test_a_quick_run() -> None:
    report = models.run(quick=True)
    assert "transformers" in report["environment"]["versions"]
    (gate,) = report["gate"]
    assert gate["logits_error"] < 1e-5
    assert gate["gradients_error"] < 1e-5
    names = [row["contender"] for row in report["rows"]]
    assert names == ["eager", "SDPA", "everyformer"]
    assert all(row["step_ms"] > 0 for row in report["rows"])
    if not torch.cuda.is_available():
        assert not any("kernels_ms" in row for row in report["rows"])
    assert models.table(report).row_count == 3


@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_what_is_wrong_is_not_timed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real = attend.toeplitz_attention

    def wrong(*args: Any, **settings: Any) -> torch.Tensor:
        return factor * real(*args, **settings)

    monkeypatch.setattr(attend, "toeplitz_attention", wrong)
    report = models.run(only=["GPT-2"])
    assert not report["gate"]
    (row,) = report["rows"]
    assert "fails its gate and is not timed" in row["failed"]
    assert models.table(report).row_count == 1


@pytest.mark.gpu
def test_kernels_count_and_waiting_does_not() -> None:
    side = torch.ones(2048, 2048, device="cuda")

    def calls(count: int, pause: float = 0.0) -> float:
        def call() -> None:
            for _ in range(count):
                torch.mm(side, side)
                time.sleep(pause)

        call()
        return kernel_milliseconds(call)

    one = calls(4)
    assert 1.5 * one < calls(8) < 3 * one
    assert calls(4, pause=0.02) < 3 * one


def test_every_stack_computes_as_it_is_asked_to() -> None:
    """T5 of transformers 5.17 asks its two stacks for nothing."""
    model = build("T5-base", import_module("transformers"), "cpu")
    attention = model.encoder.block[0].layer[0].SelfAttention

    def top_alone(name: str) -> None:
        model.config._attn_implementation = name

    with patch.object(model, "set_attn_implementation", top_alone):
        for contender in models.CONTENDERS[:3]:
            with models.computing_as(model, contender):
                used = attention.config._attn_implementation
                assert used == (contender.attention or "everyformer")


def test_biases_that_fused_kernels_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers 5.17 has heads innermost: then SDPA runs in float32, unfused."""
    real, strides = functional.scaled_dot_product_attention, set[int]()

    def spy(*given: Any, attn_mask: torch.Tensor, **more: Any) -> torch.Tensor:
        strides.add(attn_mask.stride(-1))
        return real(*given, attn_mask=attn_mask, **more)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    model = build("T5-base", import_module("transformers"), "cpu")
    batch = batch_of("T5-base", model, 2, 64)
    attention = model.encoder.block[0].layer[0].SelfAttention
    plain, bias = model(**batch).logits, attention.compute_bias(64, 64)
    assert bias.stride(-1) == 2, "heads"
    strides.clear()
    with models.computing_as(model, models.CONTENDERS[1]):
        assert attention.compute_bias(64, 64).stride(-1) == 1
        torch.testing.assert_close(model(**batch).logits, plain)
    assert strides == {1}
    assert torch.equal(attention.compute_bias(64, 64), bias)
    assert "compute_bias" not in vars(attention)


def test_no_time_left() -> None:
    report = models.run(only=["BERT-base"], minutes=1e-9)
    assert {row["failed"] for row in report["rows"]} == {"not tried: no time left"}
    assert {row["stopped"] for row in report["longest"]} == {"no time left"}


def test_the_longest_alone() -> None:
    report = models.run(quick=True, only=["GPT-2:longest", "GPT-2:longest"])
    assert report["rows"] == []
    assert len(report["gate"]) == 1
    assert [row["n"] for row in report["longest"]] == [512] * 3
    assert models.table(report).row_count == 3


def test_a_run_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are kept, those for which there was no time are not; new ones have a gate."""
    path = tmp_path / "rows.jsonl"
    models.run(only=["GPT-2"], minutes=1e-9, kept=Kept(path))
    measured, calls = models.seconds_of, count()

    def stopped(step: Any) -> float:
        if next(calls) == models.ROUNDS:  # within the second contender
            raise KeyboardInterrupt
        return measured(step)

    monkeypatch.setattr(models, "seconds_of", stopped)
    with pytest.raises(KeyboardInterrupt):
        models.run(only=["GPT-2:64"], kept=Kept(path, resume=True))
    report = models.run(only=["GPT-2:64"], kept=Kept(path, resume=True))
    assert [row["contender"] for row in report["rows"]] == ["eager", "SDPA", "everyformer"]
    assert all(row["step_ms"] > 0 for row in report["rows"])
    assert [gate["start"] for gate in report["gate"]] == [2, 3]
    monkeypatch.setattr(models, "build", None)  # what is known is not made again
    again = models.run(only=["GPT-2:64"], kept=Kept(path, resume=True))
    assert (again["rows"], again["gate"]) == (report["rows"], report["gate"])
    assert len(again["earlier_starts"]) == 3


def test_unknown_models() -> None:
    with pytest.raises(InputError, match=r"GPT-5 is not among.*T5-base"):
        models.run(only=["GPT-5"])
    for text in ("GPT-2:", "GPT-2:shortest", "GPT-2:0", "GPT-2:²", "GPT-2:1000000"):
        with pytest.raises(InputError, match=r"T5-base:512.*T5-base:longest"):
            models.run(only=[text])
