"""The packs that `sparse-glue` reads, found in a folder or made from a small grammar."""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.pack import SUFFIX, Pack, check_tokeniser, read_pack
from everyformer.errors import TrainingError
from everyformer.experiments.cell import Size
from everyformer.experiments.refusals import refuse_unknown

KINDS = (("enwiki-wp-48m", "enwiki-wp", "enwiki-wp-36m"), ("nli",), ("glue",))
"""Names of the packs of each kind; the first that is there is read."""


@dataclass(frozen=True)
class Packs:
    """Running text, pairs of sentences, and tasks of GLUE, in one vocabulary."""

    text: Pack
    pairs: Pack
    glue: Pack


def packs(size: Size, data: Path | None) -> Packs:
    """The packs of a folder; without a folder, for small sizes, the excerpts.

    Raises:
        TrainingError: If packs are missing: all that are, and how they are made.
        FileFormatError: If a pack is damaged, was made with another vocabulary or, for the
            reduced size, is not the one that results name.
    """
    if data is None and size in ("smoke", "small"):
        found = [excerpt(names[0]) for names in KINDS]
    else:
        found = [read_pack(path) for path in _paths(size, data)]
    for pack in found[1:]:
        check_tokeniser(pack, found[0].header["tokeniser"]["sha256"])
    for pack in found if size == "reduced" else ():
        refuse_unknown(pack, known_packs())
    return Packs(*found)


def known_packs() -> dict[str, str]:
    """By sha256 the names of the packs that results of the reduced size are of."""
    return json.loads((files(__package__ or "") / "packs.json").read_text())["packs"]


def _paths(size: Size, data: Path | None) -> list[Path]:
    if data is None:
        msg = (
            f"--size {size} of sparse-glue reads packs, and no folder was given. Give it "
            "with --data DIR; `everyformer data list` says which packs there are and how "
            "they are made."
        )
        raise TrainingError(msg)
    there = [
        [path for name in names if (path := data / f"{name}{SUFFIX}").is_file()]
        for names in KINDS
    ]
    missing = [names for names, own in zip(KINDS, there, strict=True) if not own]
    if missing:
        makes = "; ".join(
            f"everyformer data pack {names[0]} --from DIR --to {data}" for names in missing
        )
        told = ", ".join(" or ".join(names) for names in missing)
        msg = (
            f"{data} does not hold the packs {told}, which sparse-glue reads. Make them, "
            f"where DIR holds the files that `everyformer data list` names: {makes}."
        )
        raise TrainingError(msg)
    return [own[0] for own in there]
