"""Graphormer on batches of graphs: parameters, renumbering, padding, refusals."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.layers.plain import randomise
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers import no_decay_parameters
from everyformer.layers.encodings import Graphormer
from everyformer.layers.gains import GraphGain
from everyformer.layers.graphs.batch import GraphBatch, graph_batch, joined_graphs
from everyformer.layers.graphs.graph import Graph
from everyformer.layers.graphs.graphormer import (
    SMALL,
    GraphAttention,
    GraphormerConfig,
    GraphormerModel,
)
from everyformer.layers.graphs.pairs import GraphPairs, PathBias

TINY = GraphormerConfig(
    "urpe", layers=2, dim=8, heads=2, ffn=8, max_distance=9, distance_rows=4, max_steps=3
)
TREE = ([6, 7, 8, 6, 6, 9], [(0, 1, 1), (1, 2, 2), (1, 3, 1), (3, 4, 3), (3, 5, 1)])
"""Shortest paths of a tree are unique."""

RING = ([6, 6, 6, 7], [(0, 1, 1), (1, 2, 2), (2, 3, 1), (3, 0, 2)])
PARTS = ([6, 7, 6], [(0, 1, 3)])
ALONE = ([9], list[tuple[int, int, int]]())


def tiny(config: GraphormerConfig = TINY) -> GraphormerModel:
    model = GraphormerModel(config).double().eval()
    randomise(model)
    return model


def said(model: GraphormerModel, *graphs: Any, max_nodes: int | None = None) -> Tensor:
    batch = joined_graphs(graphs, max_nodes=max_nodes, max_steps=model.config.max_steps)
    model.check(batch)
    with torch.no_grad():
        return model(batch)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (GraphormerConfig(), 489_481),
        (GraphormerConfig(final_norm=False), 489_321),
        (GraphormerConfig("urpe"), 489_481 + 8 * 41),
        (GraphormerConfig("c1"), 489_481 + 8),
        (SMALL, 12_550_721),
    ],
)
def test_parameters_are_those_of_the_public_code(
    config: GraphormerConfig, parameters: int
) -> None:
    with torch.device("meta"):
        model = GraphormerModel(config)
    assert sum(p.numel() for p in model.parameters()) == parameters
    tables = {"pairs.bias.table", "pairs.bias.edges", "pairs.bias.steps"}
    gains = set[str]() if config.gain == "none" else {"pairs.gain.table"}
    assert no_decay_parameters(model) == tables | gains


def renumbered(graph: Any, order: list[int]) -> Any:
    nodes, edges = graph
    place = {old: new for new, old in enumerate(order)}
    return [nodes[old] for old in order], [(place[i], place[j], k) for i, j, k in edges]


class ByNumber(nn.Module):
    """What must fail: the same pairs, and a gain by the difference of node numbers."""

    def __init__(self, pairs: GraphPairs) -> None:
        super().__init__()
        self.pairs = pairs

    def forward(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        bias, _ = self.pairs(batch)
        places = torch.arange(bias.shape[-1])
        return bias, (1.0 + 0.1 * (places[:, None] - places).double()).expand_as(bias)


def test_new_numbers_change_nothing_unless_the_gain_is_by_number() -> None:
    model = tiny()
    order = [4, 0, 5, 2, 3, 1]
    change = said(model, TREE) - said(model, renumbered(TREE, order))
    assert change.abs().max() < 1e-10
    model.pairs = ByNumber(model.pairs)  # pyright: ignore
    change = said(model, TREE) - said(model, renumbered(TREE, order))
    assert change.abs().max() > 1e-3


def test_tied_paths_depend_on_the_numbers_only_through_their_edges() -> None:
    """Two paths lead across the ring; with equal edges nothing depends on which."""
    model, order = tiny(), [2, 0, 3, 1]
    assert (said(model, RING) - said(model, renumbered(RING, order))).abs().max() > 1e-6
    even = (RING[0], [(i, j, 1) for i, j, _ in RING[1]])
    assert (said(model, even) - said(model, renumbered(even, order))).abs().max() < 1e-10


@pytest.mark.parametrize("gain", ["none", "urpe", "c1"])
def test_alone_or_in_a_batch_and_filled_up_or_not(gain: str) -> None:
    """Among them a disconnected graph and an isolated atom."""
    model = tiny(replace(TINY, gain=gain))
    graphs = (TREE, PARTS, ALONE, RING)
    together = said(model, *graphs)
    filled = said(model, *graphs, max_nodes=11)
    assert (together - filled).abs().max() < 1e-12
    for place, graph in enumerate(graphs):
        assert (said(model, graph) - together[place]).abs().max() < 1e-12


def test_padded_nodes_reach_no_gradient() -> None:
    model = tiny()
    batch = joined_graphs([PARTS], max_nodes=6, max_steps=3)
    states = model.states(batch)
    states[:, :4].sum().backward()
    inputs = model.inputs.nodes.grad
    assert inputs is not None
    assert not inputs[0].any()
    table = model.pairs.bias.table.grad
    assert table is not None
    assert not table[:, 2 + 2 :].any(), "no distance above 1"
    assert table[:, 1].any(), "the other part is unreachable, and has an entry"


def test_pairs_are_those_of_the_encoding_of_one_layer() -> None:
    """B and C, each computed by the classes for single layers from the same tables."""
    pairs = GraphPairs(
        PathBias(2, 9, edge_rows=4, kinds=3, distance_rows=3, max_steps=2), GraphGain(2, 9)
    ).double()
    randomise(pairs)
    batch = joined_graphs([TREE, PARTS], max_steps=2)
    bias, gain = pairs(batch)
    single = Graphormer(2, 9, edge_dim=3, max_steps=2).double()
    own = pairs.bias
    with torch.no_grad():
        single.table.copy_(own.table)
        assert single.edge_table is not None
        single.edge_table.copy_(torch.einsum("kg,tgh->tkh", own.edges[1:], own.steps[:2]))
    kinds = torch.arange(1, 4)
    graph = Graph(batch.distance.int() - 2, (batch.paths[..., None] == kinds).double())
    q = torch.zeros(2, 2, 7, 4, dtype=torch.float64)
    wanted = single.pair_bias(q, q, 1.0, graph)
    assert wanted is not None
    seen = ~batch.hidden()[:, None, None, :].expand_as(bias)
    assert (bias - wanted)[seen].abs().max() < 1e-12
    assert (bias[~seen] == -torch.inf).all()
    assert isinstance(pairs.gain, GraphGain)
    assert gain is not None
    assert (gain - pairs.gain.matrix(7, graph=graph)).abs().max() < 1e-12


def test_attention_by_loops_over_pairs() -> None:
    layer = GraphAttention(replace(TINY, heads=2)).double().eval()
    randomise(layer)
    draw = torch.Generator().manual_seed(0)
    x, bias, gain = (
        torch.randn(*shape, generator=draw, dtype=torch.float64)
        for shape in ((1, 3, 8), (1, 2, 3, 3), (1, 2, 3, 3))
    )
    bias[..., 2] = -torch.inf
    q, k, v = layer.in_proj(x)[0].split(8, -1)
    rows = [
        torch.cat(
            [
                sum(
                    (
                        gain[0, h, i, j]
                        * torch.softmax(
                            torch.stack([q[i, p] @ k[other, p] / 2 for other in range(3)])
                            + bias[0, h, i],
                            0,
                        )[j]
                        * v[j, p]
                        for j in range(2)
                    ),
                    torch.zeros(4, dtype=torch.float64),
                )
                for h, p in ((0, slice(0, 4)), (1, slice(4, 8)))
            ]
        )
        for i in range(3)
    ]
    wanted = layer.out_proj(torch.stack(rows))
    assert (layer(x, bias, gain)[0] - wanted).abs().max() < 1e-12


@pytest.mark.parametrize("gain", ["none", "urpe", "c1"])
def test_the_fused_operator_computes_the_same(gain: str) -> None:
    """Values and gradients; where weights are dropped, the plain way is taken."""
    plain = tiny(replace(TINY, gain=gain, fused=False))
    fused = tiny(replace(TINY, gain=gain, fused=True))
    fused.load_state_dict(plain.state_dict())
    batch = joined_graphs([TREE, PARTS, ALONE], max_nodes=7, max_steps=3)
    found: list[Tensor] = []
    for model in (plain, fused):
        model(batch).sum().backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append(torch.cat([model(batch).detach(), *grads]))
    assert (found[0] - found[1]).abs().max() < 1e-10 * found[0].abs().max()
    for model in (plain, fused):
        torch.manual_seed(0)
        found.append(model.train()(batch).detach())
    assert torch.equal(found[2], found[3])


def test_a_gain_of_ones_changes_no_bit() -> None:
    plain, urpe = (GraphormerModel(replace(TINY, gain=g)).eval() for g in ("none", "urpe"))
    missing, _ = urpe.load_state_dict(plain.state_dict(), strict=False)
    assert missing == ["pairs.gain.table"]
    batch = joined_graphs([TREE, RING], max_steps=3)
    assert torch.equal(plain(batch), urpe(batch))


def test_without_structure_only_counts_are_left() -> None:
    batch = joined_graphs([TREE, PARTS], max_steps=3).without_structure()
    inner = batch.distance[0, 1:, 1:]
    assert (inner == 3).all()
    assert (batch.distance[:, 0] == 0).all()
    assert not batch.paths.any()
    assert batch.distance[1, 1, 3] == 1, "unreachable stays so"
    assert batch.in_degrees[0].tolist() == [2, 4, 2, 4, 2, 2]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"node_rows": 8}, "the node id 9 is beyond the 8 rows"),
        ({"degree_rows": 4}, "a node has degree 3; raise degree_rows"),
        ({"kinds": 2}, "an edge is of kind 3; kinds=2"),
        ({"max_distance": 3}, "two nodes are at distance 4; max_distance=3"),
        ({"max_steps": 2}, "make the batch with max_steps=2"),
    ],
)
def test_graphs_without_a_place_in_the_tables_are_refused(
    change: dict[str, int], told: str
) -> None:
    model = GraphormerModel(replace(TINY, **change))
    path = ([9] * 5, [(i, i + 1, 1) for i in range(4)])
    with pytest.raises(InputError, match="do not fit the model") as refused:
        model.check(joined_graphs([TREE, path], max_steps=3))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("graphs", "max_nodes", "told"),
    [
        ([TREE], 5, "Graph 0 has 6 nodes, and the model reads at most 5"),
        ([ALONE, ([6, 6], [(0, 2, 1)])], 4, "Graph 1 has an edge from node 0 to node 2"),
        ([ALONE, ([], [])], 4, "graph 1 has no node"),
        ([([6, 0, 6], [])], 4, "padding stands before a node"),
        ([([6, 0], [(0, 1, 1)])], 4, "an edge from 0 to 1, which is padding"),
        ([([300], [])], 4, "Node ids run to 300"),
        ([([6], [])], 253, "graphs of 253 nodes"),
        ([], None, "0 graphs of 1 nodes"),
    ],
)
def test_what_is_not_a_graph_is_refused(
    graphs: list[Any], max_nodes: int | None, told: str
) -> None:
    with pytest.raises(InputError) as refused:
        joined_graphs(graphs, max_nodes=max_nodes)
    assert told in str(refused.value)


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"gain='x'.*multiple of heads=7.*dropout=1"):
        GraphormerConfig("x", heads=7, dropout=1.0)
    with pytest.raises(InputError, match="do not suffice"):
        GraphormerModel(replace(TINY, edge_rows=3))
    with pytest.raises(InputError, match="the same max_distance"):
        GraphPairs(GraphormerModel(TINY).pairs.bias, GraphGain(2, 4))


@pytest.mark.unhooked
def test_kinds_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"kinds have shape \(1, 2, 3\)"):
        graph_batch(torch.ones(1, 2).long(), torch.zeros(1, 2, 3).long())


@pytest.mark.compile
def test_compiled_parts_compute_the_same() -> None:
    model = GraphormerModel(replace(TINY, dropout=0.0, attention_dropout=0.0)).double()
    randomise(model)
    model.dropout.p = 0.0
    batch = joined_graphs([TREE, PARTS, RING], max_nodes=7, max_steps=3)
    grads: list[Tensor] = []
    for compiled in (False, True):
        if compiled:
            for part in (model.inputs, model.pairs, *model.blocks):
                part.compile(dynamic=False)
        model.zero_grad()
        model(batch).abs().sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # pyright: ignore
    assert (grads[0] - grads[1]).abs().max() < 1e-12 * grads[0].abs().max() + 1e-12
