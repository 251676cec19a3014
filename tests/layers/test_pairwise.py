"""Layers whose bias and gain belong to pairs run the fused operator, with equal results."""

from typing import Any

import pytest
import torch
from tests.layers.plain import randomise
from torch import Tensor

from everyformer.layers import (
    Graph,
    GraphGain,
    Graphormer,
    RelativeAttention,
    ShiftedWindows,
    Swin,
    ToeplitzGain,
    attention,
)
from everyformer.layers.gains import HeadGain, WindowGain
from everyformer.ops import pairwise_attention

LAYERS: dict[str, dict[str, Any]] = {
    "Graphormer": {"encoding": Graphormer(2, 3)},
    "Graphormer, URPE": {"encoding": Graphormer(2, 3), "gain": GraphGain(2, 3)},
    "Graphormer, one gain": {"encoding": Graphormer(2, 3), "gain": GraphGain(1, 3)},
    "Graphormer, control": {"encoding": Graphormer(2, 3), "gain": HeadGain(2)},
    "Swin": {"encoding": Swin(2, 3)},
    "Swin, URPE": {"encoding": Swin(2, 3), "gain": WindowGain(2, 3)},
    "T5, on windows": {"encoding": "t5", "gain": WindowGain(1, 3), "causal": True},
    "Shaw": {"encoding": "shaw", "gain": True},
    "Transformer-XL": {"encoding": "xl", "gain": ToeplitzGain(2, 9)},
    "DeBERTa": {"encoding": "deberta", "gain": True},
    "groups": {"encoding": Swin(2, 3), "kv_heads": 1},
}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operator takes over whatever the size, and is counted."""
    calls: list[Any] = []

    def counted(*given: Any, **options: Any) -> Tensor:
        calls.append(options)
        return pairwise_attention(*given, **options)

    monkeypatch.setattr(attention, "FEW_WEIGHTS", 0)
    monkeypatch.setattr(attention, "pairwise_attention", counted)
    return calls


def made(name: str, **options: Any) -> RelativeAttention:
    torch.manual_seed(0)
    layer = RelativeAttention(8, 2, max_len=9, **LAYERS[name], **options).double()
    randomise(layer)
    return layer


@pytest.mark.parametrize("name", LAYERS)
def test_the_operator_computes_the_same(name: str, called: list[Any]) -> None:
    """Outputs and the gradients of all parameters, with padding."""
    layer = made(name)
    x = torch.randn(3, 9, 8, dtype=torch.float64, requires_grad=True)
    given: dict[str, Any] = {"key_padding_mask": torch.rand(3, 9) < 0.3}
    if "Graphormer" in name:
        given["graph"] = Graph(torch.randint(-2, 4, (3, 9, 9)))
    leaves = [x, *layer.parameters()]
    results: list[tuple[Tensor, ...]] = []
    for layer.implementation in ("auto", "reference"):
        out = layer(x, **given)
        slopes = torch.autograd.grad(out.sin().sum(), leaves, materialize_grads=True)
        results.append((out, *slopes))
        assert len(called) == 1
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_what_the_operator_does_not_compute(called: list[Any]) -> None:
    """Weights, values of offsets and masks on pairs are left to plain torch."""
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    layer = made("Swin")
    layer(x, need_weights=True)
    layer(x, attn_mask=torch.ones(9, 9, dtype=torch.bool))
    RelativeAttention(8, 2, encoding="shaw-values", max_len=9).double()(x)
    assert not called
    layer(x)
    assert len(called) == 1, "a negative control"


def test_dropout(called: list[Any]) -> None:
    """In training the operator drops, with a share that is that of the layer."""
    layer = made("Swin", dropout=0.5)
    x = torch.randn(64, 9, 8, dtype=torch.float64)
    mean = torch.stack([layer(x) for _ in range(60)]).mean(0)
    assert called[0]["dropout"] == 0.5
    exact = layer.eval()(x)
    assert called[-1]["dropout"] == 0.0
    assert (mean - exact).abs().mean() < 0.2 * exact.abs().mean()


def test_windows_of_an_image(called: list[Any]) -> None:
    """With places outside of it, which nobody sees."""
    layer = made("Swin, URPE")
    windows = ShiftedWindows(layer, (4, 5), 3, shift=1)
    x = torch.randn(2, 20, 8, dtype=torch.float64)
    found = windows(x)
    assert len(called) == 1
    layer.implementation = "reference"
    torch.testing.assert_close(found, windows(x), rtol=1e-10, atol=1e-10)


def test_few_weights_on_a_cpu_are_left_to_plain_torch(
    called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "FEW_WEIGHTS", 2 * 9 * 9)
    layer = made("Swin")
    layer(torch.randn(1, 9, 8, dtype=torch.float64))
    assert not called
    layer(torch.randn(2, 9, 8, dtype=torch.float64))
    assert len(called) == 1


@pytest.mark.compile
def test_exported_layers_take_any_batch_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the operator, as on a GPU."""

    def always(*_: object) -> bool:
        return True

    monkeypatch.setattr(RelativeAttention, "_takes_pairs", always)
    layer = RelativeAttention(8, 2, encoding="shaw", gain=True, max_len=16).eval()
    sizes = {0: torch.export.Dim("b"), 1: torch.export.Dim("n", min=2, max=16)}
    exported = torch.export.export(layer, (torch.randn(3, 5, 8),), dynamic_shapes=(sizes,))
    layer.implementation = "reference"
    for batch, n in ((2, 16), (4, 2)):
        x = torch.randn(batch, n, 8)
        torch.testing.assert_close(exported.module()(x), layer(x))
