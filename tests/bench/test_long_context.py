"""Long contexts at a tiny size: all stages run, and nothing wrong is timed."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from everyformer.bench import long_context
from everyformer.bench.kept import Kept
from everyformer.bench.long_model import LongModel, Sizes
from everyformer.errors import EveryformerError, InputError


def test_all_stages_run_and_are_kept(tmp_path: Path) -> None:
    """A run that is called again makes nothing twice."""
    kept = Kept(tmp_path / "rows.jsonl")
    report = long_context.run(kept=kept, only=["strided"])
    stages = [(row["stage"], row["arm"]) for row in report["rows"]]
    assert stages == [
        ("gate", "strided"),
        ("attention", "dense"),
        ("step", "dense"),
        ("attention", "strided"),
        ("step", "strided"),
        ("training", "dense"),
        ("training", "strided"),
    ]
    assert "times_dense_sampled" in report["rows"][3]
    for row in report["rows"][-2:]:
        seconds = [point["seconds"] for point in row["curve"]]
        assert seconds == sorted(seconds)
        assert seconds[-1] >= long_context.ON_CPU.seconds
        assert row["curve"][-1]["nats"] < row["curve"][0]["nats"]
        assert row["curve"][0]["nats"] == pytest.approx(5.55, abs=0.1)
    again = long_context.run(
        kept=Kept(tmp_path / "rows.jsonl", resume=True), only=["strided"]
    )
    assert again["rows"] == report["rows"]
    told = io.StringIO()
    Console(file=told, width=140).print(long_context.table(report))
    assert "training" in told.getvalue()
    long_context.picture(report, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000
    json.dumps(report)


def test_what_is_wrong_or_late_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = long_context.run(minutes=0.0)["rows"]
    assert {row["failed"] for row in rows} == {"not begun: the time is over"}
    with pytest.raises(InputError, match=r"fixed is not an arm. Choose among dense, str"):
        long_context.run(only=["fixed"])

    def wrong(q: Tensor, k: Tensor, v: Tensor, part: Any) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    monkeypatch.setattr(long_context, "sparse_attention", wrong)
    with pytest.raises(EveryformerError, match="strided fails its gate and is not timed"):
        long_context.run(only=["strided"])


@pytest.mark.parametrize("arm", long_context.ARMS, ids=lambda arm: arm.name)
def test_no_loss_knows_later_bytes(arm: Any) -> None:
    """The states of the first bytes do not change with the last ones."""
    n = 280
    model = LongModel(Sizes(32, 2, 16), arm, n)
    one = torch.randint(256, (1, n))
    two = one.clone()
    two[0, 200:] = (two[0, 200:] + 1) % 256

    def states(tokens: Tensor) -> Tensor:
        x = model.embedding(tokens)
        for block in model.blocks:
            x = block(x, model.turns)
        return x

    with torch.no_grad():
        a, b = states(one), states(two)
    assert torch.equal(a[:, :200], b[:, :200]) or (a - b)[:, :200].abs().max() < 1e-6
    assert (a - b)[:, 200:].abs().max() > 1e-3


def test_states_between_blocks_have_the_dtype_that_is_asked_for() -> None:
    """And the loss is that of float32 up to the rounding of bfloat16."""
    sizes, arm = Sizes(32, 2, 16), long_context.ARMS[1]
    tokens = torch.randint(256, (2, 201), generator=torch.Generator().manual_seed(0))
    seen: list[torch.dtype] = []

    def loss(states: torch.dtype) -> Tensor:
        model = LongModel(sizes, arm, 200, states)
        for block in (*model.blocks, model.head):
            block.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
        with torch.autocast("cpu", torch.bfloat16, enabled=states != torch.float32):
            return model(tokens)

    exact, rounded = loss(torch.float32), loss(torch.bfloat16)
    assert seen == 3 * [torch.float32] + 3 * [torch.bfloat16]
    assert 0 < (exact - rounded).abs() < 0.02
