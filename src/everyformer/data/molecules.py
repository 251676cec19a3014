"""A number for each molecule: graphs of a pack, dense and resident on the device."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.draws import every
from everyformer.data.order import Order
from everyformer.data.pack_task import PackTask
from everyformer.data.packs.molecules import BOND_KINDS, MILLION
from everyformer.data.packs.pack import Pack, needs
from everyformer.data.randomness import SPLITS, Split, mixed_key
from everyformer.data.resident import Resident, starts_of
from everyformer.errors import FileFormatError
from everyformer.layers.graphs.batch import GraphBatch, graph_batch, refuse_large

ARRAYS = ("nodes", "bonds", "splits", "targets", "atoms", "forward", "back", "kinds")
ORDER = 0
"""What a seed is for."""


class MoleculeGraphs:
    """All molecules of a pack as dense graphs, for each device that asks.

    Args:
        pack: Of molecules.
        max_nodes: Nodes that every graph is filled up to; by default the most of the pack.
        max_steps: Edges of a path that are kept.

    Raises:
        FileFormatError: If the pack is of another kind, or its arrays do not fit together.
        InputError: If a molecule has more nodes: which one.
    """

    def __init__(
        self, pack: Pack, *, max_nodes: int | None = None, max_steps: int = 20
    ) -> None:
        needs(pack, *ARRAYS, tokens=("atoms",))
        self.pack, self.max_steps = pack, max_steps
        arrays = {name: pack.arrays[name].astype(np.int64) for name in ARRAYS}
        _check(pack.name, arrays)
        nodes, bonds = arrays["nodes"], arrays["bonds"]
        self.max_nodes = int(nodes.max()) if max_nodes is None else max_nodes
        largest = int(nodes.argmax())
        refuse_large(largest, int(nodes[largest]), self.max_nodes)
        graph = np.repeat(np.arange(len(nodes)), nodes)
        place = np.arange(len(graph)) - np.repeat(starts_of(nodes), nodes)
        self._nodes = np.zeros((len(nodes), self.max_nodes), np.uint8)
        self._nodes[graph, place] = arrays["atoms"]
        of_bond = np.repeat(np.arange(len(nodes)), bonds)
        walked = np.cumsum(arrays["forward"])
        before = np.concatenate([[0], walked])[starts_of(bonds)]
        later = walked - np.repeat(before, bonds)
        earlier = later - arrays["back"]
        _check_bonds(pack.name, earlier, later, np.repeat(nodes, bonds))
        self._bonds = np.stack([of_bond, earlier, later, arrays["kinds"]])
        self.targets = arrays["targets"].astype(np.float64) / MILLION
        self.splits = arrays["splits"]
        self._held: dict[torch.device, tuple[GraphBatch, Tensor]] = {}

    def members(self, split: Split) -> np.ndarray:
        """The molecules of a split."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    def on(self, device: torch.device) -> tuple[GraphBatch, Float[Tensor, " graphs"]]:
        """Graphs and targets on a device; only the first call searches and copies."""
        if device not in self._held:
            nodes = torch.from_numpy(self._nodes).to(device)
            n = self.max_nodes
            kinds = torch.zeros(len(nodes), n, n, dtype=torch.uint8, device=device)
            graph, i, j, kind = torch.from_numpy(self._bonds).to(device)
            kinds[graph, i, j] = kind.byte()
            kinds[graph, j, i] = kind.byte()
            found = graph_batch(nodes, kinds, max_steps=self.max_steps)
            targets = torch.from_numpy(self.targets).to(device).float()
            self._held[device] = (found, targets)
        return self._held[device]

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the training targets."""
        own = self.targets[self.members("train")]
        return float(own.mean()), float(own.std())


class Molecules(PackTask):
    """A task: the molecules of a pack and their targets.

    Args:
        graphs: Of the pack; several tasks may share them.
        seed: Of the order of training.
    """

    task = "molecules"
    settings = ("seed", "max_nodes", "max_steps")

    def __init__(self, graphs: MoleculeGraphs, seed: int) -> None:
        self.graphs, self.seed, self.pack = graphs, seed, graphs.pack
        self.max_nodes, self.max_steps = graphs.max_nodes, graphs.max_steps
        self.seq_len = self.max_nodes + 1
        self._members = {split: graphs.members(split) for split in SPLITS}
        for split, own in self._members.items():
            if len(own) < 2:
                msg = (
                    f"The pack {graphs.pack.name!r} has {len(own)} {split} molecules; give "
                    "each split 2 or more."
                )
                raise FileFormatError(msg)
        self._places = Resident(self._members)

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """See `Task.evaluation`."""
        count, size = len(self._members[split]), batch * parts
        return every(count, size, part, parts, self.seq_len, device)

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Graphs and targets; the weights of filling are 0."""
        device = draw.numbers.device
        graphs, targets = self.graphs.on(device)
        numbers = draw.numbers.long().clamp(min=0)
        if split == "train":
            order = Order(len(self._members["train"]), mixed_key(self.seed, ORDER))
            numbers = order.at(numbers // order.count, numbers % order.count)
        chosen = self._places.on(device)[split][numbers]
        some = graphs.take(chosen)
        weights = (draw.numbers != FILLING).float()
        return Batch(some.nodes, targets[chosen], weights, graph=some)

    def clusters(self, split: Split) -> np.ndarray:
        """Each molecule is its own."""
        return np.arange(len(self._members[split]))


def _check(name: str, arrays: dict[str, np.ndarray]) -> None:
    """Counts that add up, and kinds and splits that exist.

    Raises:
        FileFormatError: If not.
    """
    nodes, bonds = arrays["nodes"], arrays["bonds"]
    sizes = {len(arrays[key]) for key in ("nodes", "bonds", "splits", "targets")}
    atoms = {int(nodes.sum()), len(arrays["atoms"])}
    lines = {int(bonds.sum()), *(len(arrays[key]) for key in ("forward", "back", "kinds"))}
    good = len(sizes) == len(atoms) == len(lines) == 1 and len(nodes) > 0
    good = good and nodes.min() > 0 and arrays["atoms"].min() > 0
    good = good and arrays["splits"].max() < len(SPLITS)
    kinds = arrays["kinds"]
    good = good and kinds.min(initial=1) >= 1 and kinds.max(initial=1) <= BOND_KINDS
    if not good:
        msg = (
            f"The arrays of the pack {name!r} do not fit together: columns of {sizes} "
            f"molecules, {atoms} atoms, {lines} bonds, or ids that do not exist. Make the "
            "pack anew."
        )
        raise FileFormatError(msg)


def _check_bonds(
    name: str, earlier: np.ndarray, later: np.ndarray, nodes: np.ndarray
) -> None:
    """Bonds between two atoms of their molecule.

    Raises:
        FileFormatError: If one is not.
    """
    wrong = (earlier < 0) | (earlier >= later) | (later >= nodes)
    if wrong.any():
        place = int(wrong.argmax())
        msg = (
            f"Bond {place} of the pack {name!r} joins the atoms {earlier[place]} and "
            f"{later[place]} of a molecule of {nodes[place]}. Make the pack anew."
        )
        raise FileFormatError(msg)
