"""Shortest paths of many graphs at once, against a queue and against RDKit."""

import os
from collections import deque
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from everyformer.layers.graphs.graph import UNREACHABLE, shortest_paths
from everyformer.layers.graphs.search import along_paths, distances, nodes_before

DATA = os.environ.get("EVERYFORMER_DATA")


def by_queue(adjacency: Tensor) -> tuple[list[list[int]], dict[tuple[int, int], list[int]]]:
    """Distances, and the nodes of the path of each pair: one node, one edge at a time."""
    n = len(adjacency)
    near = [adjacency[i].nonzero()[:, 0].tolist() for i in range(n)]
    table: list[list[int]] = []
    paths: dict[tuple[int, int], list[int]] = {}
    for start in range(n):
        found, queue = {start: 0}, deque([start])
        while queue:
            node = queue.popleft()
            for other in near[node]:
                if other not in found:
                    found[other] = found[node] + 1
                    queue.append(other)
        table.append([found.get(j, UNREACHABLE) for j in range(n)])
        for end in found:
            path = [end]
            while path[0] != start:
                one_less = found[path[0]] - 1
                before = [
                    i for i in found if found[i] == one_less and adjacency[i, path[0]]
                ]
                path.insert(0, min(before))
            paths[start, end] = path
    return table, paths


def random_graphs(count: int, n: int, *, directed: bool) -> Tensor:
    draw = torch.Generator().manual_seed(n + directed)
    dense = torch.rand(count, 1, 1, generator=draw) * 0.4
    adjacency = torch.rand(count, n, n, generator=draw) < dense
    adjacency &= ~torch.eye(n, dtype=torch.bool)
    return adjacency if directed else adjacency | adjacency.mT


@pytest.mark.parametrize("directed", [False, True])
def test_many_graphs_at_once_are_searched_as_one_by_one(directed: bool) -> None:
    """Some of them disconnected, with isolated nodes, or without any edge."""
    adjacency = random_graphs(40, 9, directed=directed)
    adjacency[0] = False
    kinds = torch.randint(1, 4, adjacency.shape, generator=torch.Generator().manual_seed(1))
    found = distances(adjacency)
    before = nodes_before(adjacency, found)
    along = along_paths(found, before, kinds, 3)
    vectors = along_paths(found, before, torch.stack([kinds, -kinds], -1).double(), 3)
    assert torch.equal(vectors[..., 1], -along.double())
    unreachable = 0
    for graph, own in enumerate(adjacency):
        table, paths = by_queue(own)
        assert found[graph].tolist() == table
        assert torch.equal(shortest_paths(own).distance, found[graph])
        for i in range(9):
            for j in range(9):
                path = paths.get((i, j), [i])
                unreachable += (i, j) not in paths
                passed = [int(kinds[graph, a, b]) for a, b in pairwise(path[:4])]
                assert along[graph, i, j].tolist() == [*passed, 0, 0, 0][:3]
    assert unreachable > 100
    assert int(found.max()) > 3, "paths that are longer than what is kept"


@pytest.mark.parametrize("n", [1, 2])
def test_isolated_nodes_and_the_smallest_graphs(n: int) -> None:
    alone = torch.zeros(2, n, n, dtype=torch.bool)
    found = distances(alone)
    assert (found.diagonal(dim1=1, dim2=2) == 0).all()
    assert (nodes_before(alone, found) == -1).all()
    kinds = torch.ones(2, n, n, dtype=torch.uint8)
    assert not along_paths(found, nodes_before(alone, found), kinds, 4).any()


@pytest.mark.skipif(DATA is None, reason="ZINC is not in the repository")
def test_a_thousand_molecules_of_zinc_as_rdkit_has_them() -> None:
    """The test molecules: distances of RDKit, and the paths of one graph at a time."""
    import numpy as np
    from rdkit import Chem

    from everyformer.data.packs.molecules import molecule, zinc12k_rows
    from everyformer.layers.graphs.batch import joined_graphs

    rows = zinc12k_rows(Path(DATA or "") / "zinc" / "zinc12k.csv")
    smiles = [row.smiles for row in rows if row.split == "test"]
    assert len(smiles) == 1000
    graphs = [molecule(one) for one in smiles]
    batch = joined_graphs([([1] * len(g.atoms), g.bonds) for g in graphs], max_nodes=37)
    for place, (one, graph) in enumerate(zip(smiles, graphs, strict=True)):
        n = len(graph.atoms)
        matrix = Chem.GetDistanceMatrix(Chem.MolFromSmiles(one))  # pyright: ignore
        own = batch.distance[place, 1 : n + 1, 1 : n + 1].int() - 2
        assert np.array_equal(own.numpy(), matrix)
        assert (batch.distance[place, n + 1 :, 1:] == 1).all()
        if place % 20 == 0:
            kinds = torch.zeros(n, n, 1)
            for i, j, kind in graph.bonds:
                kinds[i, j] = kinds[j, i] = kind
            single = shortest_paths(kinds[..., 0] > 0, kinds, max_steps=20)
            assert single.path_edges is not None
            mine = batch.paths[place, 1 : n + 1, 1 : n + 1]
            assert torch.equal(single.path_edges[..., 0].byte(), mine)
            _, nodes = by_queue(kinds[..., 0] > 0)
            for (i, j), path in nodes.items():
                passed = [int(kinds[a, b]) for a, b in pairwise(path)]
                assert mine[i, j, : len(passed)].tolist() == passed[:20]
