"""The packs of molecules that the experiments read, found in a folder or made here."""

from pathlib import Path

from everyformer.data.molecules import MoleculeGraphs
from everyformer.data.packs.molecule_excerpt import molecule_excerpt
from everyformer.data.packs.pack import Pack, read_pack
from everyformer.errors import FileFormatError
from everyformer.experiments.cell import Size
from everyformer.experiments.needed_packs import (
    first_pack,
    known_packs,
    needed_pack,
    refuse_renamed,
)

PACKS = {"urpe-zinc": ("zinc12k", "zinc250k"), "urpe-qm9": ("qm9-gap",)}
"""The first is needed; others are read where they are there."""


def graphs_of(
    experiment: str, size: Size, data: Path | None, max_steps: int
) -> dict[str, MoleculeGraphs]:
    """The molecules of each pack; without a folder, for small sizes, those made here.

    Raises:
        TrainingError: If the pack is missing: how it is made.
        FileFormatError: If a pack is damaged, or not the one that results are named after.
    """
    needed, *others = PACKS[experiment]
    if data is None and size in ("smoke", "small"):
        return {needed: MoleculeGraphs(molecule_excerpt(), max_steps=max_steps)}
    paths = {needed: needed_pack(experiment, size, data, [needed])}
    for name in others if size != "smoke" else ():
        if (path := first_pack(data, [name])) is not None:
            paths[name] = path
    found = {name: read_pack(path) for name, path in paths.items()}
    if size in ("reduced", "paper"):
        for name, pack in found.items():
            refuse_renamed(pack, paths[name])
            _check_known(pack)
    return {name: MoleculeGraphs(pack, max_steps=max_steps) for name, pack in found.items()}


def _check_known(pack: Pack) -> None:
    known = {name: sha for sha, name in known_packs(__package__ or "").items()}
    if pack.name in known and known[pack.name] != pack.sha256:
        msg = (
            f"The pack {pack.name} has the sha256 {pack.sha256[:12]}, and results are "
            f"about {known[pack.name][:12]}: they would not be of the molecules that they "
            "name. Make the pack from the files that `everyformer data list` names."
        )
        raise FileFormatError(msg)
