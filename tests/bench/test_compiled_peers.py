"""What compiled peers are compiled to: the shapes at hand, one graph, no mask of nothing.

A backend notes the graphs and runs them as they are.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from everyformer.bench import attention, bert, pairwise

CPU = torch.device("cpu")


class Noted:
    """A backend of `torch.compile`."""

    def __init__(self) -> None:
        self.graphs: list[GraphModule] = []
        self.symbols = 0

    def __call__(self, graph: GraphModule, given: list[Any]) -> Callable[..., Any]:
        """Runs the graph as it is."""
        self.graphs.append(graph)
        self.symbols += sum(isinstance(x, torch.SymInt) for x in given)
        return graph.forward


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Noted]:
    backend, real = Noted(), torch.compile

    def compiled(function: Any, *, dynamic: bool | None = None) -> Any:
        return real(function, backend=backend, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", compiled)
    torch.compiler.reset()
    yield backend
    torch.compiler.reset()


def test_every_length_of_attention_is_compiled_for_itself(noted: Noted) -> None:
    """By default the second one is compiled for any length."""
    found = dict[str, Tensor]()
    wanted = torch.empty(0)
    for n in (32, 64, 128):
        shape = attention.Shape(256 // n, n, 2, 8)
        tensors = [x.detach() for x in attention.inputs("cpu", shape, torch.float32)]
        for name, forward, _ in attention.contenders("cuda", tensors, causal=False):
            if name == "ours, bias alone":
                wanted = forward()
            elif "compiled" in name or "FlexAttention" in name:
                found[name] = forward()
        torch.testing.assert_close(found["FlexAttention, bias alone"], wanted)
    assert len(noted.graphs) == 9
    assert not noted.symbols


@pytest.mark.parametrize("how", ["hf, masked", "hf, all"])
def test_a_bert_without_padding_attends_without_a_mask(noted: Noted, how: str) -> None:
    """Transformers 5.17, compiled as a whole, makes one of all pairs."""
    pytest.importorskip("transformers")
    contender = bert.Contender("tiny", bert.TINY, how, 4)
    task = bert.RandomWindows(contender.config)
    batch = task.batch("train", task.draw(0, 4, 0, 1, CPU))
    torch.compile(bert.their_model(contender))(batch)
    (graph,) = noted.graphs
    found = [node for node in graph.graph.nodes if "scaled_dot_product" in str(node.target)]
    assert len(found) == bert.TINY.layers
    for node in found:
        masks = [*node.args[3:], node.kwargs.get("attn_mask")]
        assert not any(isinstance(mask, Node) for mask in masks)


PUBLIC = """
import torch
from everyformer.bench import graphs, xl
from everyformer.bench.graph_peers import PublicGraphormer
from everyformer.bench.xl_peer import PeerModel

found, cpu = [], torch.device("cpu")

def noted(graph, given):
    found.append(any(isinstance(x, torch.SymInt) for x in given))
    return graph.forward

whole, _ = graphs.made_graphs(12, graphs.TINY.max_steps).on(cpu)
model = PublicGraphormer(graphs.TINY)
model.compile(dynamic=False, backend=noted)
for first in (0, 4):
    model(whole.take(torch.arange(first, first + 4)))
one, mems = xl.ON_CPU[0], None
peer, task = PeerModel(one.config, one.length), xl.task_of(one)
peer.compile(dynamic=False, backend=noted)
for step in range(4):
    batch = task.batch("train", task.draw(step, one.batch, 0, 1, cpu))
    _, mems = peer(batch.tokens.T, batch.labels.T, mems)
print(found)
"""


def test_public_code_is_compiled_as_a_whole() -> None:
    """One graph of Graphormer; of Transformer-XL two, without and with a memory.

    In a process of its own, where no function checks its arguments.
    """
    made = subprocess.run(
        [sys.executable, "-c", PUBLIC], capture_output=True, text=True, check=True
    )
    assert made.stdout.splitlines()[-1] == "[False, False, False]"


@pytest.mark.parametrize("size", [10, 16])
def test_heads_that_fused_kernels_take(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    functional, seen = torch.nn.functional, list[int]()
    real = functional.scaled_dot_product_attention

    def spy(q: Tensor, *given: Any, **more: Any) -> Tensor:
        seen.append(q.shape[-1])
        return real(q, *given, **more)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    q, k, v = torch.randn(3, 2, 3, 38, size)
    bias = torch.randn(2, 3, 38, 38)
    wanted = torch.softmax(q @ k.mT * size**-0.5 + bias, -1) @ v
    torch.testing.assert_close(pairwise.with_sdpa(q, k, v, bias), wanted)
    assert seen == [16]
