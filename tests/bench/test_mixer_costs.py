"""Costs of mixers: counted as PyTorch counts, right before they are timed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from everyformer.bench import mixer_costs
from everyformer.errors import EveryformerError
from everyformer.layers.models.encoder_config import MIXERS
from everyformer.train.throughput import forward_flops


def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(mixer_costs.BERT_BASE, dim=64, heads=4, ffn=128)
    monkeypatch.setattr(mixer_costs, "BERT_BASE", small)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    report = mixer_costs.run(quick=True)
    torch.set_num_threads(before)
    assert [row["mixer"] for row in report["rows"]] == [*MIXERS]
    assert mixer_costs.table(report).row_count == len(report["rows"])
    for row in report["rows"]:
        assert 0 < row["forward_ms"] < row["both_ms"]
        assert row["saved_bytes"] > 0
    mixer_costs.picture(report, tmp_path / "costs.png")
    assert (tmp_path / "costs.png").stat().st_size > 5_000


@pytest.mark.parametrize("n", [128, 512])
def test_operations_are_those_that_pytorch_counts(n: int) -> None:
    """At full size, without numbers; light, separable and dynamic are below attention."""
    found: dict[str, int] = {}
    for mixer in MIXERS:
        block = mixer_costs.block_of(mixer, n, "meta")
        with FlopCounterMode(display=False) as counter:
            block(torch.zeros(1, n, 768, device="meta"))
        taps = 2 * n * 768 * 128 if mixer == "dynamic" else 0  # sums, for PyTorch
        found[mixer] = forward_flops(block, n)
        assert counter.get_total_flops() == found[mixer] - taps
    cheaper = ("average", "bilinear", "separable", "light")
    assert all(found[mixer] < found["attention"] for mixer in cheaper)
    assert found["dynamic"] > found["light"]


def test_what_the_backward_pass_needs_is_counted_once() -> None:
    weight = nn.Parameter(torch.ones(3, 5))
    x = torch.ones(7, 3, requires_grad=True)

    def twice() -> Tensor:
        y = (x @ weight).sin()
        return y * y

    kept = 4 * (7 * 3 + 7 * 5 + 7 * 5)  # x, the argument of sin, y once
    assert mixer_costs.saved_bytes(twice, [weight]) == kept


def test_nothing_wrong_is_timed() -> None:
    block = mixer_costs.block_of("average", 16)
    x = torch.randn(1, 16, 768)
    assert mixer_costs.gate(block, x, "average") < 1e-4

    def off(module: nn.Module, given: object, out: Tensor) -> Tensor:
        return out + 0.01 * (out.dtype == torch.float32)

    block.register_forward_hook(off)
    with pytest.raises(EveryformerError, match="fails its gate and is not timed"):
        mixer_costs.gate(block, x, "average")
