"""The packs that `sparse-glue` reads, found in a folder or made from a small grammar."""

from dataclasses import dataclass
from pathlib import Path

from everyformer.data.packs.pack import Pack
from everyformer.experiments.cell import Size
from everyformer.experiments.needed_packs import packs_of_kinds

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
            reduced size, is not one that results are of.
    """
    return Packs(*packs_of_kinds(__package__ or "", "sparse-glue", size, data, KINDS))
