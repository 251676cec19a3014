"""The pairs that `sparse-translation` reads: a pack, raw files, or made ones."""

from pathlib import Path

from everyformer.data.packs.pack import Pack, pack_of_files, read_pack
from everyformer.data.packs.translation import aligned_pairs, translation_arrays
from everyformer.data.packs.translation_excerpt import translation_excerpt
from everyformer.errors import TrainingError
from everyformer.experiments.cell import Size
from everyformer.experiments.needed_packs import first_pack, raw_files, refuse_unknown

NAMES: dict[Size, tuple[str, ...]] = {
    "smoke": ("multi30k-en-de", "multi30k-en-cs"),
    "small": ("multi30k-en-de", "multi30k-en-cs"),
    "reduced": ("europarl-en-de-18m", "europarl-en-de"),
}
"""Packs of a size; the first that is there is read."""

RAW = tuple(f"{part}.{one}" for part in ("train", "valid", "test") for one in ("en", "cs"))


def pairs_of(size: Size, data: Path | None, pieces: int) -> Pack:
    """The pairs of a size.

    Raises:
        TrainingError: If nothing is there, and how to make it.
        FileFormatError: If a pack is damaged, or is not the one that results of the
            reduced size are of.
    """
    if data is None and size in ("smoke", "small"):
        return translation_excerpt()
    if size == "paper":
        return _raw(data, pieces)
    there = first_pack(data, NAMES[size])
    if there is None:
        where = "no folder was given" if data is None else f"{data} holds neither"
        msg = (
            f"--size {size} of sparse-translation reads a pack ({', '.join(NAMES[size])}), "
            f"and {where}. Make it by `everyformer data pack {NAMES[size][0]} --from DIR "
            "--to packs`, and give its folder with --data."
        )
        raise TrainingError(msg)
    pack = read_pack(there)
    if size == "reduced":
        refuse_unknown(pack, __package__ or "")
    return pack


def _raw(data: Path | None, pieces: int) -> Pack:
    """WMT18 en-cs from the user's own files, line by line.

    Raises:
        TrainingError: If files are missing.
    """
    note = "; test is newstest2015"
    paths = raw_files("sparse-translation", "WMT18 en-cs", RAW, data, note)
    arrays, counts, vocabulary = translation_arrays(aligned_pairs(paths), pieces)
    licence, tokeniser = "WMT: free for research", vocabulary.describe()
    return pack_of_files("wmt18-en-cs", licence, tokeniser, paths, arrays, counts)
