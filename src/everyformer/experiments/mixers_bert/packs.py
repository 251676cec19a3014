"""The packs that `mixers-bert` reads, found in a folder or made from a small grammar."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.pack import SUFFIX, Pack, check_tokeniser, read_pack
from everyformer.errors import TrainingError
from everyformer.experiments.cell import Size
from everyformer.experiments.refusals import refuse_unknown

TEXT = ("enwiki-wp", "enwiki-wp-48m")
"""Either will do; the first that is there is read."""

PAIRS, QUESTIONS = ("nli",), ("squad",)


@dataclass(frozen=True)
class Packs:
    """Running text, pairs of sentences, and questions, in one vocabulary."""

    text: Pack
    pairs: Pack
    questions: Pack


def packs(size: Size, data: Path | None) -> Packs:
    """The packs of a folder; without a folder, for small sizes, the excerpts.

    Raises:
        TrainingError: If a pack is missing: all that are, and how they are made; or if
            results of the reduced size would be of other texts than they say.
        FileFormatError: If a pack is damaged, or was made with another vocabulary.
    """
    kinds = (TEXT, PAIRS, QUESTIONS)
    if data is None and size in ("smoke", "small"):
        found = [excerpt(names[0]) for names in kinds]
    else:
        found = [read_pack(path) for path in _paths(size, data, kinds)]
    for pack in found[1:]:
        check_tokeniser(pack, found[0].header["tokeniser"]["sha256"])
    if size == "reduced":
        for pack in found:
            refuse_unknown(pack, {sha: name for name, sha in known_packs().items()})
    return Packs(*found)


def _paths(size: Size, data: Path | None, kinds: Sequence[Sequence[str]]) -> list[Path]:
    if data is None:
        msg = (
            f"--size {size} of mixers-bert reads packs, and no folder was given. Give it "
            "with --data DIR; `everyformer data list` says which packs there are and how "
            "they are made."
        )
        raise TrainingError(msg)
    paths: list[Path] = []
    missing: list[str] = []
    for names in kinds:
        there = [path for name in names if (path := data / f"{name}{SUFFIX}").is_file()]
        paths += there[:1]
        if not there:
            missing.append(" or ".join(names))
    if missing:
        makes = "; ".join(
            f"everyformer data pack {name.split()[0]} --from DIR --to {data}"
            for name in missing
        )
        msg = (
            f"{data} does not hold the packs {', '.join(missing)}, which mixers-bert "
            f"reads. Make them, where DIR holds the files that `everyformer data list` "
            f"names: {makes}."
        )
        raise TrainingError(msg)
    return paths


def known_packs() -> dict[str, str]:
    """The packs that results of the reduced size are of, by name: their sha256."""
    return json.loads((files(__package__ or "") / "packs.json").read_text())["packs"]
