"""GIN, GCN and GAT: formulas node by node, padding, numbering, sizes, refusals."""

import math

import pytest
import torch
from torch import Tensor

from everyformer.errors import InputError
from everyformer.layers.graphs.batch import GraphBatch, joined_graphs
from everyformer.layers.graphs.message_passing import (
    GAT,
    GCN,
    GIN,
    KINDS,
    SLOPE,
    MessagePassingConfig,
    MessagePassingModel,
    neighbours,
)

SQUARE = ([3, 1, 2, 1], [(0, 1, 1), (1, 2, 2), (2, 3, 1), (3, 0, 1)])
STAR = ([2, 1, 1], [(0, 1, 1), (0, 2, 3)])
LONE = ([1], list[tuple[int, int, int]]())


def graphs(*which: tuple[list[int], list[tuple[int, int, int]]], n: int = 5) -> GraphBatch:
    return joined_graphs(which, max_nodes=n)


def node_by_node(layer: GIN | GCN | GAT, x: Tensor, near: list[list[int]]) -> Tensor:
    """What the papers print, for one graph; near[i] are the neighbours of node i."""
    out: list[Tensor] = []
    for i in range(len(x)):
        if isinstance(layer, GIN):
            total = (1 + layer.eps) * x[i] + sum((x[j] for j in near[i]), 0 * x[i])
            out.append(layer.outer(torch.relu(layer.inner(total))))
            continue
        W, seen = layer.linear.weight, [i, *near[i]]
        if isinstance(layer, GCN):
            terms = [
                W @ x[j] / math.sqrt((len(near[i]) + 1) * (len(near[j]) + 1)) for j in seen
            ]
            out.append(torch.stack(terms).sum(0) + layer.bias)
            continue
        heads: list[Tensor] = []
        for k, part in enumerate(W.chunk(layer.heads)):
            e = [layer.own[k] @ part @ x[i] + layer.other[k] @ part @ x[j] for j in seen]
            e = [score if score > 0 else SLOPE * score for score in e]
            top = [torch.exp(score) for score in e]
            weighed = [t * (part @ x[j]) for t, j in zip(top, seen, strict=True)]
            heads.append(torch.stack(weighed).sum(0) / torch.stack(top).sum())
        out.append(torch.cat(heads) + layer.bias)
    return torch.stack(out)


@pytest.mark.parametrize("make", [GIN, GCN, GAT])
def test_layers_are_the_formulas_of_the_papers(make: type[GIN | GCN | GAT]) -> None:
    torch.manual_seed(0)
    layer = make(MessagePassingConfig("gat", 1, 6, heads=2)).double()
    for part in layer.parameters():
        torch.nn.init.normal_(part)
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    A = neighbours(graphs(SQUARE, n=4)).double()
    near = [[j for j in range(4) if A[0, i, j]] for i in range(4)]
    assert near == [[1, 3], [0, 2], [1, 3], [0, 2]]
    wanted = node_by_node(layer, x[0], near)
    assert float((layer(x, A)[0] - wanted).detach().abs().max()) < 1e-12


def model(kind: str, **settings: int) -> MessagePassingModel:
    torch.manual_seed(1)
    sizes = {"layers": 3, "dim": 8, "heads": 2, **settings}
    return MessagePassingModel(MessagePassingConfig(kind, **sizes)).double().eval()


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_of_a_batch_padding_and_numbers_change_nothing(kind: str) -> None:
    made = model(kind)
    nodes, edges = SQUARE
    order = [2, 0, 3, 1]  # the new number of each node
    renumbered = (
        [nodes[order.index(i)] for i in range(4)],
        [(order[i], order[j], k) for i, j, k in edges],
    )
    with torch.no_grad():
        together = made(graphs(SQUARE, STAR, LONE, renumbered))
        alone = [made(graphs(one, n=9))[0] for one in (SQUARE, STAR, LONE, renumbered)]
    assert torch.allclose(together, torch.stack(alone), rtol=0, atol=1e-12)
    assert float((together[0] - together[3]).abs()) < 1e-12
    assert len({round(float(one), 6) for one in together[:3]}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_heard_and_nodes_out_of_reach_are_not(kind: str) -> None:
    """A path: after one block the first node hears the second and not the third."""
    made = model(kind, layers=1)
    block = made.blocks[0]
    path = graphs(([1, 2, 3], [(0, 1, 1), (1, 2, 1)]), n=3)
    x, A = torch.randn(1, 3, 8).double(), neighbours(path, torch.float64)
    there = torch.ones(1, 3, 1, dtype=torch.bool)
    moved = [x.clone() for _ in range(3)]
    for j in range(3):
        moved[j][:, j] += 1
    first = [block(y, A, there)[:, 0] for y in (x, *moved)]
    heard = [not torch.equal(one, first[0]) for one in first[1:]]
    assert heard == [True, True, False]
    assert not torch.allclose(made(path), made(path.without_structure()))


def test_the_number_of_parameters_and_the_nearest_width() -> None:
    for kind in KINDS:
        config = MessagePassingConfig(kind, layers=2, dim=16, heads=4, node_rows=9)
        made = MessagePassingModel(config)
        assert sum(one.numel() for one in made.parameters()) == config.parameters
        assert config.of_size(config.parameters) == config


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"kind='sage' .*dropout=1.0 must be"):
        MessagePassingConfig("sage", 1, 8, dropout=1.0)
    with pytest.raises(InputError, match="dim=9 is not a multiple of heads=8"):
        MessagePassingConfig("gat", 1, 9)
    with pytest.raises(InputError, match="node id 3 is beyond the 3 rows"):
        model("gcn", node_rows=3).check(graphs(SQUARE))
