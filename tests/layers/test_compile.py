"""Layers compile as one graph, forward and backward."""

from typing import Any

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from torch import Tensor, nn
from torch._dynamo import lookup_backend

from everyformer.layers import (
    Graph,
    GraphGain,
    Graphormer,
    RelativeAttention,
    Swin,
    add_urpe,
    shortest_paths,
)

N = 9
SOME = ["t5-buckets", "rotary", "shaw-values", "xl"]
OTHERS = ["none", "t5", "alibi", "shaw", "deberta"]


class Beside(nn.Module):
    """Layers with several encodings on the same tokens."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            RelativeAttention(8, 2, encoding=name, gain=True, max_len=N, causal=True)
            for name in names
        )
        self.layers.append(
            RelativeAttention(8, 2, encoding="t5", gain=True, max_len=4, clamp=True)
        )
        slow = RelativeAttention(8, 2, encoding="t5", gain=True, max_len=4, clamp=True)
        slow.implementation = "reference"
        self.layers.append(slow)
        self.layers.append(RelativeAttention(8, 2, encoding=Swin(2, 3)))
        encoding = Graphormer(2, N, edge_dim=3, max_steps=2)
        self.on_graph = RelativeAttention(8, 2, encoding=encoding, gain=GraphGain(2, N))

    def forward(self, x: Tensor, padded: Tensor, graph: Graph) -> Tensor:
        found = [layer(x, key_padding_mask=padded) for layer in self.layers]
        found.append(self.on_graph(x, key_padding_mask=padded, graph=graph))
        return torch.stack(found)


@pytest.mark.rows(1)
@pytest.mark.compile
@pytest.mark.parametrize("names", [SOME, OTHERS])
def test_layers_compile(names: list[str]) -> None:
    torch.compiler.reset()
    model = Beside(names).double()
    randomise(model)
    path = torch.diag(torch.ones(N - 1, dtype=torch.bool), 1)
    graph = shortest_paths(path | path.T, tokens(N, N, 3), max_steps=2)
    x, padded = tokens(2, N, 8), some_padding(2, N)
    parameters = list(model.parameters())
    compiled = torch.compile(model, fullgraph=True)
    out, expected = (f(x, padded, graph) for f in (compiled, model))
    assert (out - expected).abs().max() < 1e-12
    one, two = (torch.autograd.grad(y.square().sum(), parameters) for y in (out, expected))
    for a, b in zip(one, two, strict=True):
        assert (a - b).abs().max() < 1e-10


@pytest.mark.compile
def test_lengths_may_change() -> None:
    """The second length makes the graph dynamic; the third must not compile again."""
    torch.compiler.reset()
    layer = RelativeAttention(8, 2, encoding="t5", gain=True, max_len=32).double()
    randomise(layer)
    graphs = 0

    def counting(module: torch.fx.GraphModule, given: list[Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return lookup_backend("inductor")(module, given)

    compiled = torch.compile(layer, fullgraph=True, backend=counting)
    parameters = list(layer.parameters())
    for n in (5, 9, 13, 21):
        x = tokens(2, n, 8)
        out, wanted = compiled(x), layer(x)
        assert (out - wanted).abs().max() < 1e-12
        pair = (torch.autograd.grad(y.square().sum(), parameters) for y in (out, wanted))
        for a, b in zip(*pair, strict=True):
            assert (a - b).abs().max() < 1e-9 * max(1.0, float(b.abs().max()))
    assert graphs == 2


@pytest.mark.compile
@pytest.mark.parametrize("name", ["none", "t5", "rotary", "deberta"])
def test_exported_layers_take_any_batch_and_length(name: str) -> None:
    layer = RelativeAttention(
        8, 2, kv_heads=1, encoding=name, gain=name != "none", max_len=16, causal=True
    ).eval()
    sizes = {0: torch.export.Dim("b"), 1: torch.export.Dim("n", min=2, max=16)}
    exported = torch.export.export(layer, (torch.randn(3, 5, 8),), dynamic_shapes=(sizes,))
    for batch, n in ((2, 16), (4, 2), (1, 9)):
        x = torch.randn(batch, n, 8)
        torch.testing.assert_close(exported.module()(x), layer(x))


@pytest.mark.compile
def test_attention_of_torch_with_urpe_compiles() -> None:
    torch.compiler.reset()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    gained = add_urpe(attention, max_len=16)
    randomise(gained)
    x = tokens(2, 7, 8)
    compiled = torch.compile(gained, fullgraph=True)
    pair = [f(x, x, x, need_weights=False)[0] for f in (compiled, gained)]
    assert (pair[0] - pair[1]).abs().max() < 1e-12
    table = gained.get_parameter("urpe_gain.table")
    one, two = (torch.autograd.grad(y.square().sum(), table) for y in pair)
    assert (one[0] - two[0]).abs().max() < 1e-10


@pytest.mark.slow
@pytest.mark.compile
def test_a_model_of_transformers_with_urpe_compiles() -> None:
    torch.compiler.reset()
    library = pytest.importorskip("transformers")
    config = library.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    model = add_urpe(library.BertModel(config).double().eval(), max_len=16)
    randomise(model, size=0.3)
    ids = torch.arange(14).view(2, 7)
    compiled = torch.compile(model)
    pair = [f(ids)[0] for f in (compiled, model)]
    assert (pair[0] - pair[1]).abs().max() < 1e-9
    table = model.urpe_gain.table
    one, two = (torch.autograd.grad(y.square().sum(), table) for y in pair)
    assert (one[0] - two[0]).abs().max() < 1e-7
