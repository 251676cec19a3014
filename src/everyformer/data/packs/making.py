"""From a folder of source files to a pack."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.data.packs.enwiki import enwiki_arrays
from everyformer.data.packs.glue import glue_arrays
from everyformer.data.packs.molecules import (
    Row,
    molecule_arrays,
    qm9_rows,
    zinc12k_rows,
    zinc250k_rows,
)
from everyformer.data.packs.nli import nli_arrays
from everyformer.data.packs.novels import bytes_tokeniser, novel_arrays
from everyformer.data.packs.pack import (
    pack_path,
    refuse_existing,
    write_pack,
)
from everyformer.data.packs.sources import VOCABULARY, Recipe
from everyformer.data.packs.squad import squad_arrays
from everyformer.data.packs.translation import (
    VOCABULARY_SIZES,
    aligned_pairs,
    europarl_pairs,
    translation_arrays,
)
from everyformer.data.packs.wikitext import enwiki_words_arrays, wikitext_arrays
from everyformer.data.packs.wordpiece import read_vocabulary
from everyformer.data.packs.words import read_lines, vocabulary_of
from everyformer.errors import FileFormatError, InputError
from everyformer.progress import Progress, no_progress


def make_pack(
    recipe: Recipe,
    source: Path,
    target: Path,
    *,
    tokens: int | None = None,
    workers: int = 1,
    progress: Progress = no_progress,
) -> Path:
    """Make a pack from the files of a folder; returns its path.

    What takes minutes is kept in a folder `.NAME.work` beside the pack until the pack is
    whole: called again after an interruption, this goes on from there.

    Args:
        recipe: What to make.
        source: Folder with the files that the recipe names.
        target: Folder of the pack; made if it does not exist.
        tokens: Instead of the recipe's own; the name then gains "-TOKENS".
        workers: Processes.
        progress: Called now and then.

    Raises:
        FileNotFoundError: If files are missing.
        FileExistsError: If the pack is there already, or its folder is a file.
        FileFormatError: If a file is not the one that the recipe names.
        InputError: If the recipe has no tokens to choose, or so few leave no training text.
    """
    name = recipe.name_of(tokens)
    path = pack_path(target, name)
    refuse_existing(path)
    if target.exists() and not target.is_dir():
        msg = f"{target} is a file, and packs are written into a folder (--to). Name one."
        raise FileExistsError(msg)
    sources = checked_sources(recipe, source, progress)
    target.mkdir(parents=True, exist_ok=True)
    work = target / f".{name}.work"
    arrays, counts, tokeniser = _arrays(
        recipe, source, sources, tokens or recipe.tokens, workers, work, progress
    )
    if tokens is not None:
        _refuse_no_training(recipe.name, arrays, tokens)
    header: dict[str, Any] = {
        "name": name,
        "licence": recipe.licence,
        "tokeniser": tokeniser,
        "sources": sources,
        "counts": counts,
    }
    write_pack(path, header, arrays, workers=workers, work=work, progress=progress)
    shutil.rmtree(work, ignore_errors=True)
    return path


def _arrays(
    recipe: Recipe,
    source: Path,
    sources: dict[str, str],
    tokens: int | None,
    workers: int,
    work: Path,
    progress: Progress,
) -> tuple[dict[str, np.ndarray], dict[str, int], dict[str, Any]]:
    """The arrays of a recipe, its counts, and what its token ids mean."""
    key = "".join(sources.values())
    files = [source / one for one in recipe.files if one != VOCABULARY]
    if recipe.kind in ("words", "wikitext"):
        train, valid, test, *articles = files
        texts = (train, valid, test)
        vocabulary = vocabulary_of(read_lines(train))
        arrays, counts = wikitext_arrays(texts, vocabulary)
        if articles:
            more = enwiki_words_arrays(
                articles, vocabulary, tokens=tokens, workers=workers, work=work, key=key,
                progress=progress,
            )  # fmt: skip
            arrays, counts = arrays | more[0], counts | more[1]
        return arrays, counts, vocabulary.describe()
    if recipe.kind == "molecules":
        return molecule_arrays(
            _molecules(recipe.name, files),
            workers=workers, work=work, key=key, progress=progress,
        )  # fmt: skip
    if recipe.kind == "novels":
        return *novel_arrays(files[0], tokens), bytes_tokeniser()
    if recipe.kind == "translation":
        parliament = recipe.name.startswith("europarl")
        pairs = europarl_pairs(files) if parliament else aligned_pairs(files)
        name = next(one for one in VOCABULARY_SIZES if recipe.name.startswith(one))
        arrays, counts, bytes_ = translation_arrays(
            pairs, VOCABULARY_SIZES[name], tokens=tokens, progress=progress
        )
        return arrays, counts, bytes_.describe()
    wordpiece = read_vocabulary(source / VOCABULARY, sha256=sources[VOCABULARY])
    if recipe.kind == "enwiki":
        found = enwiki_arrays(
            files, wordpiece, tokens=tokens, workers=workers, work=work, key=key,
            progress=progress,
        )  # fmt: skip
    elif recipe.kind == "glue":
        found = glue_arrays(source / "glue", wordpiece, progress=progress)
    elif recipe.kind == "nli":
        mnli, snli, dev = files
        found = nli_arrays(mnli, snli, dev, wordpiece, progress=progress)
    else:
        train, dev = files
        found = squad_arrays(train, dev, wordpiece, progress=progress)
    return *found, wordpiece.describe()


def _refuse_no_training(name: str, arrays: dict[str, np.ndarray], tokens: int) -> None:
    if "train" in arrays and not len(arrays["train"]):
        held = len(arrays["validation"]) + len(arrays["test"])
        msg = (
            f"{tokens:,} tokens of {name} are too few to hold any training text beside the "
            f"{held:,} that are held out. Give more --tokens."
        )
        raise InputError(msg)


def _molecules(name: str, files: list[Path]) -> list[Row]:
    """The molecules of a recipe."""
    if name == "zinc250k":
        return zinc250k_rows(files)
    return zinc12k_rows(files[0]) if name == "zinc12k" else qm9_rows(files[0])


def checked_sources(recipe: Recipe, source: Path, progress: Progress) -> dict[str, str]:
    """The sha256 of each file of a recipe, which must be the one it names.

    Raises:
        FileNotFoundError: If files are missing; all of them are named.
        FileFormatError: If one has other content.
    """
    recipe.check_files(source)
    found: dict[str, str] = {}
    for number, (name, wanted) in enumerate(recipe.files.items()):
        progress("check sources", number, len(recipe.files))
        with (source / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        if found[name] != wanted:
            kind = "vocabulary" if name == VOCABULARY else "file"
            msg = (
                f"{source / name} is another {kind}: its sha256 begins with "
                f"{found[name][:12]}, not with {wanted[:12]}. A pack named {recipe.name!r} "
                "would not be what others mean by it. Unpack the file again."
            )
            raise FileFormatError(msg)
    return found
