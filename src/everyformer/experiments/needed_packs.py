"""The packs that an experiment reads: found in a folder, or what to do without them.

`packs.json` of an experiment names, by sha256, the packs that its results of the reduced
size are of.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.pack import Pack, pack_path, read_pack
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.cell import Size


def known_packs(package: str) -> dict[str, str]:
    """By sha256 the names of the packs that results of the reduced size are of."""
    return json.loads((files(package) / "packs.json").read_text())["packs"]


def first_pack(data: Path | None, names: Sequence[str]) -> Path | None:
    """The file of the first of these packs that is there."""
    paths = [] if data is None else [pack_path(data, name) for name in names]
    return next((path for path in paths if path.is_file()), None)


def needed_pack(
    experiment: str, size: Size, data: Path | None, names: Sequence[str]
) -> Path:
    """The file of the first of these packs that is there.

    Raises:
        TrainingError: If none is: how it is made.
    """
    there = first_pack(data, names)
    if there is None:
        lacks = "holds none of them" if len(names) > 1 else "does not hold it"
        where = "no folder was given" if data is None else f"{data} {lacks}"
        msg = (
            f"--size {size} of {experiment} reads the pack {' or '.join(names)}, and "
            f"{where}. Make it: everyformer data pack {names[0]} --from DIR --to PACKS "
            "(`everyformer data list` says what DIR holds), and give its folder: --data "
            "PACKS."
        )
        raise TrainingError(msg)
    return there


def refuse_unknown(pack: Pack, package: str) -> None:
    """Refuse a pack that results of the reduced size are not of.

    Raises:
        FileFormatError: If it is another one.
    """
    known = known_packs(package)
    if pack.sha256 not in known:
        msg = (
            f"The pack {pack.name} has the sha256 {pack.sha256[:12]}, and --size reduced "
            f"is about {', '.join(known.values())}: results would not be of the texts that "
            "they name. Make the pack from the files that `everyformer data list` names, "
            "or use --size small with your own."
        )
        raise FileFormatError(msg)


def refuse_renamed(pack: Pack, path: Path) -> None:
    """Refuse a pack under another's name: a table would name what it does not hold.

    Raises:
        FileFormatError: If the file is not named after its pack.
    """
    if pack_path(path.parent, pack.name) != path:
        msg = (
            f"{path} holds the pack {pack.name!r}, and results would be said to be of "
            f"another. Rename it to {pack_path(path.parent, pack.name).name}."
        )
        raise FileFormatError(msg)


def raw_files(
    experiment: str, what: str, names: Sequence[str], data: Path | None, note: str = ""
) -> list[Path]:
    """The user's own files, which the paper's size reads.

    Raises:
        TrainingError: If files are missing.
    """
    paths = [] if data is None else [data / name for name in names]
    missing = [path.name for path in paths if not path.is_file()]
    if data is None or missing:
        where = "no folder was given" if data is None else f"{data} lacks {missing}"
        msg = (
            f"--size paper of {experiment} reads {what} ({', '.join(names)}{note}), and "
            f"{where}. Give the folder of these files with --data."
        )
        raise TrainingError(msg)
    return paths


def packs_of_kinds(
    package: str,
    experiment: str,
    size: Size,
    data: Path | None,
    kinds: Sequence[Sequence[str]],
) -> list[Pack]:
    """A pack of each kind, in one vocabulary; small sizes without a folder have excerpts.

    Args:
        package: Of the experiment.
        experiment: Its name.
        size: Of the run.
        data: Folder of packs.
        kinds: Names of the packs of each kind; the first that is there is read.

    Raises:
        TrainingError: If packs are missing: all that are, and how they are made.
        FileFormatError: If a pack is damaged, was made with another vocabulary or, for the
            reduced size, is not one that results are of.
    """
    if data is None and size in ("smoke", "small"):
        found = [excerpt(names[0]) for names in kinds]
    else:
        found = [read_pack(path) for path in _paths(experiment, size, data, kinds)]
    _refuse_two_vocabularies(found)
    for pack in found if size == "reduced" else ():
        refuse_unknown(pack, package)
    return found


def _refuse_two_vocabularies(packs: Sequence[Pack]) -> None:
    first, own = packs[0].name, packs[0].header["tokeniser"]["sha256"]
    for pack in packs[1:]:
        other = pack.header["tokeniser"]["sha256"]
        if other != own:
            msg = (
                f"The packs {first!r} and {pack.name!r} were made with two vocabularies, "
                f"{own[:12]} and {other[:12]}: in one of them the token ids mean other "
                "words. Make all packs of an experiment with one vocabulary; `everyformer "
                "data list` names its packs."
            )
            raise FileFormatError(msg)


def _paths(
    experiment: str, size: Size, data: Path | None, kinds: Sequence[Sequence[str]]
) -> list[Path]:
    if data is None:
        msg = (
            f"--size {size} of {experiment} reads packs, and no folder was given. Give it "
            "with --data DIR; `everyformer data list` says which packs there are and how "
            "they are made."
        )
        raise TrainingError(msg)
    there = [first_pack(data, names) for names in kinds]
    missing = [names for names, path in zip(kinds, there, strict=True) if path is None]
    if missing:
        makes = "; ".join(
            f"everyformer data pack {names[0]} --from DIR --to {data}" for names in missing
        )
        told = ", ".join(" or ".join(names) for names in missing)
        msg = (
            f"{data} does not hold the packs {told}, which {experiment} reads. Make them, "
            f"where DIR holds the files that `everyformer data list` names: {makes}."
        )
        raise TrainingError(msg)
    return [path for path in there if path is not None]
