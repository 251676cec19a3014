"""The target of ZINC: penalised logP, the sum of three z-scores.

    (logP - m_1) / s_1 + (-SA - m_2) / s_2 + (-cycle - m_3) / s_3

logP is Crippen's, SA the score of synthetic accessibility of RDKit's contributions, and
cycle how many atoms the longest ring of a cycle basis has beyond 6. Means and deviations
are those of GCPN (You et al. 2018), over all of ZINC 250k.

The cycle basis is Paton's, in the order of the atoms' numbers. In molecules with joined
large rings another order finds other rings: 3 of the 12,000 molecules of `zinc12k` have
another cycle term in their table.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import networkx as nx

MEANS = (2.4570953396190123, -3.0525811293166134, -0.0485696876403053)
DEVIATIONS = (1.434324401111988, 0.8335207024513095, 0.2860212110245455)
LONG_RING = 6


def penalised_logp(smiles: str) -> float:
    """The target of a molecule that RDKit can read."""
    from rdkit import Chem
    from rdkit.Chem import Crippen

    found: Any = Chem.MolFromSmiles(smiles)
    near: dict[int, list[int]] = {atom.GetIdx(): [] for atom in found.GetAtoms()}
    for bond in found.GetBonds():
        begin, end = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        near[begin].append(end)
        near[end].append(begin)
    longest = max(
        (len(ring) for ring in cycle_basis({k: sorted(own) for k, own in near.items()})),
        default=0,
    )
    logp: float = Crippen.MolLogP(found)  # pyright: ignore
    terms = (logp, -_sa_scorer().calculateScore(found), -max(0, longest - LONG_RING))
    return sum(
        (term - mean) / deviation
        for term, mean, deviation in zip(terms, MEANS, DEVIATIONS, strict=True)
    )


def cycle_basis(near: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Rings from which all cycles of a graph can be put together (Paton 1969).

    A spanning tree grows from the lowest node; each edge to a node that was seen closes a
    ring with the paths of both ends in the tree. Nodes are given to the search from high to
    low, as it begins each further component with the last one left.

    Args:
        near: The neighbours of each node.

    Example:
        >>> cycle_basis({0: [1, 2], 1: [0, 2], 2: [1, 0, 3], 3: [2]})
        [[1, 2, 0]]
    """
    graph: Any = nx.Graph()
    graph.add_nodes_from(sorted(near, reverse=True))
    graph.add_edges_from(sorted((i, j) for i, own in near.items() for j in own if i <= j))
    return nx.cycle_basis(graph, min(near, default=None))


@cache
def _sa_scorer() -> Any:
    """The module that RDKit ships among its contributions, outside of its package."""
    from rdkit.Chem import RDConfig

    folder = str(Path(RDConfig.RDContribDir) / "SA_Score")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module("sascorer")
