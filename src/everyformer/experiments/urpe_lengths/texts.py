"""The text of the small language model: made by a grammar, or a file of the user."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from everyformer.data.packs.excerpt import sentences, towns
from everyformer.data.randomness import SPLITS
from everyformer.errors import TrainingError
from everyformer.experiments.urpe_lengths.tasks import SHARES


@lru_cache
def excerpt_texts() -> tuple[str, dict[str, np.ndarray]]:
    """The articles about towns that do not exist, as bytes; no town is in two splits."""
    texts = {
        split: "\n".join(line for town in towns(split) for line in [*sentences(town), ""])
        for split in SPLITS
    }
    return _named("excerpt", {split: text.encode() for split, text in texts.items()})


def texts_of(path: Path) -> tuple[str, dict[str, np.ndarray]]:
    """A file as it is: nine tenths to learn, then validation and test, each a twentieth.

    Raises:
        TrainingError: If there is no such file.
    """
    if not path.is_file():
        msg = (
            f"--data {path} is not a file. urpe-lengths reads one text; leave out --data "
            "for the bundled excerpt."
        )
        raise TrainingError(msg)
    whole = path.read_bytes()
    first, second = (int(share * len(whole)) for share in SHARES)
    parts = (whole[:first], whole[first:second], whole[second:])
    return _named(path.name, dict(zip(SPLITS, parts, strict=True)))


def _named(name: str, texts: Mapping[str, bytes]) -> tuple[str, dict[str, np.ndarray]]:
    digest = hashlib.sha256(b"".join(texts.values())).hexdigest()
    arrays: dict[str, np.ndarray] = {
        split: np.array(np.frombuffer(text, np.uint8)) for split, text in texts.items()
    }
    return f"{name} {digest[:12]}", arrays
