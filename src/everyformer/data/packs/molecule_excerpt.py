"""A small pack of molecules that do not exist: for tests and laptops, without any data.

Chains with branches and one ring each, of carbon, nitrogen and oxygen. The target asks for
distances: how many pairs of a nitrogen and an oxygen are two bonds apart, less a third of
how much the ring is longer than five, and a tenth of each double bond. Nothing is random
but hashes.
"""

import hashlib
from functools import cache

import torch

from everyformer.data.packs.molecules import Molecule, stored_molecules
from everyformer.data.packs.pack import Pack, new_pack
from everyformer.data.randomness import SPLITS, Split, mixed_key
from everyformer.layers.graphs.graph import shortest_paths

COUNTS: dict[Split, int] = {"train": 96, "validation": 24, "test": 32}
ATOMS = ("C", "C", "C", "N", "O")


@cache
def molecule_excerpt() -> Pack:
    """The pack, made here and now."""
    found: list[Molecule] = []
    splits: list[Split] = []
    for split in SPLITS:
        for number in range(COUNTS[split]):
            found.append(_made(mixed_key(SPLITS.index(split), number)))
            splits.append(split)
    arrays, counts, tokeniser = stored_molecules(
        found, [_target(one) for one in found], splits
    )
    header = {
        "name": "excerpt-molecules",
        "licence": "Apache-2.0 (made by everyformer)",
        "tokeniser": tokeniser,
        "sources": {"molecule_excerpt": hashlib.sha256(b"molecules 1").hexdigest()},
        "counts": counts,
    }
    return new_pack(header, arrays)


def _made(key: int) -> Molecule:
    """A ring of 5 to 8 atoms, and 3 to 8 more, each on an earlier one."""

    def drawn(what: int, below: int) -> int:
        return (mixed_key(key, what) >> 8) % below

    ring, more = 5 + drawn(0, 4), 3 + drawn(1, 6)
    bonds = [(i, i + 1, 1) for i in range(ring - 1)] + [(0, ring - 1, 1)]
    bonds += [
        (max(0, atom - 1 - drawn(10 + atom, 3)), atom, 1 + drawn(50 + atom, 2))
        for atom in range(ring, ring + more)
    ]
    atoms = tuple(ATOMS[drawn(100 + atom, len(ATOMS))] for atom in range(ring + more))
    return Molecule(atoms, tuple(sorted(bonds, key=lambda bond: (bond[1], bond[0]))))


def _target(one: Molecule) -> float:
    n = len(one.atoms)
    adjacency = torch.zeros(n, n, dtype=torch.bool)
    for i, j, _ in one.bonds:
        adjacency[i, j] = adjacency[j, i] = True
    distance = shortest_paths(adjacency).distance
    pairs = sum(
        int(distance[i, j]) == 2
        for i in range(n)
        for j in range(n)
        if one.atoms[i] == "N" and one.atoms[j] == "O"
    )
    ring = max(j - i for i, j, _ in one.bonds) + 1
    double = sum(kind == 2 for _, _, kind in one.bonds)
    return pairs - (ring - 5) / 3 - double / 10
