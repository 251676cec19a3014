"""The texts that `urpe-wikitext` reads: packs of a folder, raw files, or the excerpt."""

from pathlib import Path

from everyformer.data.packs.excerpt import words_excerpt
from everyformer.data.packs.pack import Pack, needs, pack_of_files, read_pack
from everyformer.data.packs.reading import EOS
from everyformer.data.packs.wikitext import wikitext_arrays
from everyformer.data.packs.words import read_lines, vocabulary_of
from everyformer.data.randomness import SPLITS
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.cell import Size
from everyformer.experiments.needed_packs import (
    first_pack,
    raw_files,
    refuse_renamed,
    refuse_unknown,
)

NAMES = {
    "enwiki-words": ("enwiki-words", "enwiki-words-12m"),
    "wikitext-2": ("wikitext-2",),
}
"""Texts, and the packs that hold them; the first that is there is read."""

COUNTS = {"validation": 217_646, "test": 245_569}
"""Words of WikiText-2, `<eos>` included: a perplexity over others is another quantity."""

RAW = ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens")
WORDS_OF_103 = 267_735


def texts(size: Size, data: Path | None) -> dict[str, Pack]:
    """By name, the texts of a size that are there.

    Raises:
        TrainingError: If no text is there, and how to make one.
        FileFormatError: If a pack is damaged, has other words, or is not the one that
            results of the reduced size are of.
    """
    if size == "paper":
        return {"wikitext-103": _raw(data)}
    if data is None and size in ("smoke", "small"):
        return {"excerpt": words_excerpt()}
    wanted = ("wikitext-2",) if size in ("smoke", "small") else tuple(NAMES)
    found: dict[str, Pack] = {}
    for text in wanted:
        there = first_pack(data, NAMES[text])
        if there is not None:
            found[text] = _checked(text, read_pack(there))
            if size == "reduced":
                refuse_renamed(found[text], there)
                refuse_unknown(found[text], __package__ or "")
    if not found:
        where = "no folder was given" if data is None else f"{data} holds neither"
        makes = " or ".join(
            f"`everyformer data pack {NAMES[text][0]} --from DIR --to packs`"
            for text in wanted
        )
        msg = (
            f"--size {size} of urpe-wikitext reads packs of words "
            f"({', '.join(one for text in wanted for one in NAMES[text])}), and {where}. "
            f"Make one by {makes}, and give its folder with --data."
        )
        raise TrainingError(msg)
    return found


def _checked(text: str, pack: Pack) -> Pack:
    """A pack of the words of WikiText-2, whole."""
    needs(pack, *SPLITS)
    if EOS not in pack.specials:
        msg = (
            f"The pack {pack.name!r} holds WordPieces, not the words of WikiText-2: its "
            "ids mean something else. Make the pack by `everyformer data pack "
            f"{NAMES[text][0]}`."
        )
        raise FileFormatError(msg)
    for split, count in COUNTS.items():
        own = len(pack.arrays.get(split, ()))
        if own != count:
            msg = (
                f"The {split} text of the pack {pack.name!r} has {own:,} words, that of "
                f"WikiText-2 {count:,}: a perplexity over it is another quantity. Make "
                "the pack from the official files."
            )
            raise FileFormatError(msg)
    return pack


def _raw(data: Path | None) -> Pack:
    """WikiText-103 from the user's own files, its words sorted by frequency.

    Raises:
        TrainingError: If files are missing.
        FileFormatError: If they are those of another data set.
    """
    paths = raw_files("urpe-wikitext", "WikiText-103", RAW, data)
    words = vocabulary_of(read_lines(paths[0]), by_frequency=True)
    if len(words.words) != WORDS_OF_103:
        msg = (
            f"{paths[0]} has {len(words.words):,} different words, and WikiText-103 has "
            f"{WORDS_OF_103:,}: it is another data set, with another perplexity. Give the "
            "training file of WikiText-103."
        )
        raise FileFormatError(msg)
    licence = "CC BY-SA 3.0 (Wikipedia contributors, Merity et al. 2016)"
    made = wikitext_arrays(paths, words)
    return pack_of_files("wikitext-103", licence, words.describe(), paths, *made)
