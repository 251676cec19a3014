"""Layers compile as one graph, forward and backward."""

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from torch import Tensor

from everyformer.layers import (
    GraphGain,
    Graphormer,
    RelativeAttention,
    Swin,
    add_urpe,
    shortest_paths,
)

NAMES = [
    "none", "t5", "t5-buckets", "alibi", "rotary", "shaw", "shaw-values", "deberta", "xl",
]  # fmt: skip


def assert_same(layer: RelativeAttention, x: Tensor, **given: object) -> None:
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    parameters = list(layer.parameters())
    out, expected = compiled(x, **given), layer(x, **given)
    assert (out - expected).abs().max() < 1e-12
    one, two = (torch.autograd.grad(y.square().sum(), parameters) for y in (out, expected))
    for a, b in zip(one, two, strict=True):
        assert (a - b).abs().max() < 1e-10


@pytest.mark.compile
@pytest.mark.parametrize("name", NAMES)
def test_layers_compile(name: str) -> None:
    layer = RelativeAttention(8, 2, encoding=name, gain=True, max_len=9, causal=True)
    layer.double()
    randomise(layer)
    assert_same(layer, tokens(2, 7, 8), key_padding_mask=some_padding(2, 7))


@pytest.mark.compile
def test_clamped_and_reference_layers_compile() -> None:
    layer = RelativeAttention(8, 2, encoding="t5", gain=True, max_len=4, clamp=True)
    layer.double()
    randomise(layer)
    assert_same(layer, tokens(2, 7, 8))
    layer.implementation = "reference"
    assert_same(layer, tokens(2, 7, 8))


@pytest.mark.compile
def test_windows_and_graphs_compile() -> None:
    swin = RelativeAttention(8, 2, encoding=Swin(2, 3)).double()
    randomise(swin)
    assert_same(swin, tokens(2, 9, 8))
    path = torch.diag(torch.ones(6, dtype=torch.bool), 1)
    graph = shortest_paths(path | path.T, tokens(7, 7, 3), max_steps=2)
    encoding = Graphormer(2, 6, edge_dim=3, max_steps=2)
    graphormer = RelativeAttention(8, 2, encoding=encoding, gain=GraphGain(2, 6)).double()
    randomise(graphormer)
    assert_same(graphormer, tokens(2, 7, 8), graph=graph)


@pytest.mark.compile
def test_lengths_may_change() -> None:
    """The second length makes the graph dynamic; the third must not compile again."""
    torch.compiler.reset()
    layer = RelativeAttention(8, 2, encoding="t5", gain=True, max_len=32).double()
    randomise(layer)
    graphs = 0

    def counting(module: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        nonlocal graphs
        graphs += 1
        return module

    compiled = torch.compile(layer, fullgraph=True, backend=counting)
    for n in (5, 9, 13, 21):
        x = tokens(2, n, 8)
        assert (compiled(x) - layer(x)).abs().max() < 1e-12
    assert graphs == 2


@pytest.mark.compile
def test_models_of_torch_with_urpe_compile() -> None:
    torch.compiler.reset()
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    model = add_urpe(attention, max_len=16)
    randomise(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = tokens(2, 7, 8)
    out, _ = compiled(x, x, x, need_weights=False)
    assert (out - model(x, x, x, need_weights=False)[0]).abs().max() < 1e-12
