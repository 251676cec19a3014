"""Attention on graphs: distances, counting, and what a renumbering does."""

import pytest
import torch
from tests.layers.plain import randomise, tokens
from torch import Tensor

from everyformer.layers import (
    UNREACHABLE,
    VIRTUAL,
    Graph,
    GraphGain,
    Graphormer,
    RelativeAttention,
    ToeplitzGain,
    shortest_paths,
)

N = 7


def molecule() -> Tensor:
    """Two rings that share node 0, and node 6 alone."""
    adjacency = torch.zeros(N, N, dtype=torch.bool)
    for i, j in [(0, 1), (1, 2), (2, 0), (0, 3), (3, 4), (4, 5), (5, 0)]:
        adjacency[i, j] = adjacency[j, i] = True
    return adjacency


def layer_on_graphs(gain: GraphGain | ToeplitzGain) -> RelativeAttention:
    encoding = Graphormer(2, 4, edge_dim=3, max_steps=2)
    layer = RelativeAttention(8, 2, encoding=encoding, gain=gain).double()
    randomise(layer)
    return layer


def renumbering_error(layer: RelativeAttention, *, own_graph: bool = False) -> float:
    """How far the output moves from the output moved."""
    order = torch.tensor([3, 6, 0, 5, 1, 4, 2])
    adjacency, features = molecule(), tokens(N, N, 3, seed=4)
    x = tokens(2, N, 8)
    graph = shortest_paths(adjacency, features, max_steps=2)
    if own_graph:
        moved = shortest_paths(
            adjacency[order][:, order], features[order][:, order], max_steps=2
        )
    else:
        assert graph.path_edges is not None
        moved = Graph(graph.distance[order][:, order], graph.path_edges[order][:, order])
    difference = layer(x[:, order], graph=moved) - layer(x, graph=graph)[:, order]
    return float(difference.abs().max().detach())


def test_renumbering_the_nodes_renumbers_the_output() -> None:
    layer = layer_on_graphs(GraphGain(2, 4))
    assert renumbering_error(layer) < 1e-10
    # Shortest paths of this graph are unique but for 0 - 4, which has two.
    with torch.no_grad():
        assert isinstance(layer.encoding, Graphormer)
        assert layer.encoding.edge_table is not None
        layer.encoding.edge_table.zero_()
    assert renumbering_error(layer, own_graph=True) < 1e-10


def test_a_gain_by_node_number_fails_that_test() -> None:
    assert renumbering_error(layer_on_graphs(ToeplitzGain(2, N))) > 1e-2


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_a_head_counts_the_nodes_at_a_distance(k: int) -> None:
    layer = RelativeAttention(1, 1, gain=GraphGain(1, 4)).double()
    with torch.no_grad():
        layer.in_proj_weight.zero_()
        assert layer.in_proj_bias is not None
        assert layer.gain is not None
        layer.in_proj_bias[2] = 1.0
        layer.out_proj.weight.fill_(1.0)
        layer.gain.table.zero_()
        layer.gain.table[0, 2 + k] = 1.0
    graph = shortest_paths(molecule())
    counts = layer(torch.zeros(1, N, 1, dtype=torch.float64), graph=graph)[0, :, 0]
    expected = [
        [1] * 7,
        [4, 2, 2, 2, 2, 2, 0],
        [1, 2, 2, 3, 1, 3, 0],
        [0, 1, 1, 0, 2, 0, 0],
    ]
    assert (counts * N - torch.tensor(expected[k])).abs().max() < 1e-12


def test_distances_and_the_virtual_node() -> None:
    graph = shortest_paths(molecule(), virtual_node=True)
    distance = graph.distance
    assert distance.shape == (N + 1, N + 1)
    assert (distance[0] == VIRTUAL).all()
    assert (distance[:, 0] == VIRTUAL).all()
    inner = distance[1:, 1:]
    assert inner[0].tolist() == [0, 1, 1, 1, 2, 1, UNREACHABLE]
    assert inner[1].tolist() == [1, 0, 1, 2, 3, 2, UNREACHABLE]
    assert inner[6].tolist() == [UNREACHABLE] * 6 + [0]


def test_edges_lie_along_the_paths() -> None:
    """A directed path 0 -> 1 -> 2 -> 3, its edges numbered by where they begin."""
    adjacency = torch.diag(torch.ones(3, dtype=torch.bool), 1)
    features = torch.arange(4.0)[:, None, None].expand(4, 4, 1) + 1
    graph = shortest_paths(adjacency, features, max_steps=2)
    assert graph.path_edges is not None
    assert graph.path_edges.shape == (4, 4, 2, 1)
    assert graph.path_edges[0, 3, :, 0].tolist() == [1.0, 2.0]  # the first two of three
    assert graph.path_edges[1, 3, :, 0].tolist() == [2.0, 3.0]
    assert graph.path_edges[2, 3, :, 0].tolist() == [3.0, 0.0]
    assert graph.path_edges[3, 0, :, 0].tolist() == [0.0, 0.0]
    virtual = shortest_paths(adjacency, features, max_steps=2, virtual_node=True)
    assert virtual.path_edges is not None
    assert torch.equal(virtual.path_edges[1:, 1:], graph.path_edges)
    assert not virtual.path_edges[0].any()


def test_padded_nodes_change_nothing() -> None:
    layer = layer_on_graphs(GraphGain(2, 4))
    graph = shortest_paths(molecule(), tokens(N, N, 3, seed=4), max_steps=2)
    padded = torch.zeros(2, N, dtype=torch.bool)
    padded[:, 4:] = True
    x = tokens(2, N, 8)
    out = layer(x, graph=graph, key_padding_mask=padded)
    distance = graph.distance.clone()
    distance[4:], distance[:, 4:] = VIRTUAL, UNREACHABLE
    other = x.clone()
    other[:, 4:] = 3.0
    again = layer(other, graph=Graph(distance, graph.path_edges), key_padding_mask=padded)
    assert torch.equal(out[:, :4], again[:, :4])


def test_far_nodes_are_clamped_on_request() -> None:
    path = torch.diag(torch.ones(6, dtype=torch.bool), 1)
    graph = shortest_paths(path | path.T)
    gain = GraphGain(1, 4, clamp=True)
    randomise(gain)
    matrix = gain.matrix(N, graph=graph)[0, 0]
    assert torch.equal(matrix[0, 4:], gain.table[0, 6].expand(3))
