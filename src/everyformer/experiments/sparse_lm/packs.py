"""The text that `sparse-lm` reads: a pack of a folder, LM1B, or the excerpt."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.pack import Pack, read_pack
from everyformer.errors import FileFormatError
from everyformer.experiments.cell import Size
from everyformer.experiments.needed_packs import needed_pack, refuse_unknown
from everyformer.experiments.sparse_lm.lm1b import lm1b

NAMES = ("enwiki-wp-48m", "enwiki-wp", "enwiki-wp-36m")
"""Any will do; the first that is there is read."""


@dataclass(frozen=True)
class Text:
    """A pack, and how many words its tokens are.

    Attributes:
        pack: Of documents.
        words_of_a_token: For each split whitespace words / tokens.
        counted: Whether words were counted in these texts; else they are estimated from
            those of the whole source.
    """

    pack: Pack
    words_of_a_token: Mapping[str, float]
    counted: bool


def text_of(size: Size, data: Path | None) -> Text:
    """The text of a size.

    Raises:
        TrainingError: If it is missing, and how to make it.
        FileFormatError: If a pack is damaged, or not the one that results are of.
    """
    if size == "paper":
        pack, words = lm1b(data)
        return Text(pack, _shares(pack, words), counted=True)
    if data is None and size in ("smoke", "small"):
        return _with_words(excerpt("enwiki-wp"))
    pack = read_pack(needed_pack("sparse-lm", size, data, NAMES))
    if size == "reduced":
        refuse_unknown(pack, __package__ or "")
    return _with_words(pack)


def counted_words() -> dict[str, dict[str, int]]:
    """By sha256 of a pack: the words of its validation and test texts."""
    return json.loads((files(__package__ or "") / "packs.json").read_text())["words"]


def _with_words(pack: Pack) -> Text:
    words = counted_words().get(pack.sha256)
    if words is not None:
        return Text(pack, _shares(pack, words), counted=True)
    counts = pack.header["counts"]
    if not {"source_words", "source_tokens"} <= counts.keys():
        msg = (
            f"The pack {pack.name!r} does not say how many words its text has, so that "
            "there is no perplexity of a word. `everyformer data list` says which packs "
            "are for what."
        )
        raise FileFormatError(msg)
    share = counts["source_words"] / counts["source_tokens"]
    return Text(pack, {"validation": share, "test": share}, counted=False)


def _shares(pack: Pack, words: Mapping[str, int]) -> dict[str, float]:
    return {split: count / len(pack.arrays[split]) for split, count in words.items()}
