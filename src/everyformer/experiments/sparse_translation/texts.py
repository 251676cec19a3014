"""What a trained model says: translations of test pairs, kept as text, and nats of news."""

from collections.abc import Sequence

import numpy as np
import torch

from everyformer.data.packs.reading import BEGIN, END
from everyformer.data.translation import Translations
from everyformer.errors import FileFormatError
from everyformer.layers.models.decoding import greedy
from everyformer.train.objectives.translate import Translate

AT_ONCE = 250
"""Pairs that are translated together."""

SETS = ("test", "news")


def chosen(task: Translations, name: str, count: int) -> np.ndarray:
    """Numbers in the pack of the pairs that are translated, at equal distances."""
    own = task.members("test") if name == "test" else task.news
    if len(own) <= count:
        return own
    return own[np.arange(count) * len(own) // count]


def translated(
    objective: Translate, task: Translations, count: int
) -> dict[str, np.ndarray]:
    """Texts of both sets, as UTF-8 with a line for each; and nats of a token of news."""
    device = objective.encoder.decoder.positions.device
    found: dict[str, np.ndarray] = {}
    for name in SETS:
        numbers = chosen(task, name, count)
        if len(numbers):
            found[f"texts_{name}"] = as_array(_said(objective, task, numbers, device))
    numbers = chosen(task, "news", count)
    if len(numbers):
        found["news_nats"] = _nats(objective, task, numbers, device)
    return found


def as_array(texts: Sequence[str]) -> np.ndarray:
    """Texts as bytes, one on each line."""
    lines = "".join(f"{' '.join(text.splitlines())}\n" for text in texts)
    return np.frombuffer(lines.encode(), np.uint8)


def from_array(array: np.ndarray) -> list[str]:
    """The texts of `as_array`.

    Raises:
        FileFormatError: If they are not UTF-8.
    """
    try:
        text = array.astype(np.uint8).tobytes().decode()
    except UnicodeDecodeError as error:
        msg = "The stored translations are not text. Move the results, and run them again."
        raise FileFormatError(msg) from error
    return text.removesuffix("\n").split("\n")


def _said(
    objective: Translate, task: Translations, numbers: np.ndarray, device: torch.device
) -> list[str]:
    """Greedy translations; sources of about one length are read together."""
    specials, said = task.pack.specials, [""] * len(numbers)
    for places, length in _groups(task, numbers):
        batch = task.pairs(numbers[places], length, device)
        tokens = greedy(
            objective.encoder, batch.tokens, padding=batch.padding, begin=specials[BEGIN],
            end=specials[END], words=task.pack.vocabulary,
        ).tolist()  # fmt: skip
        for place, row in zip(places.tolist(), tokens, strict=True):
            said[place] = task.pieces.text(row)
    return said


def _nats(
    objective: Translate, task: Translations, numbers: np.ndarray, device: torch.device
) -> np.ndarray:
    """Scaled sums for each pair, whose mean is that over all tokens."""
    nats, tokens = np.zeros(len(numbers)), np.zeros(len(numbers))
    for places, length in _groups(task, numbers):
        found = objective.scores(task.pairs(numbers[places], length, device))
        nats[places] = found["nats"].float().cpu().numpy()
        tokens[places] = found["tokens"].cpu().numpy()
    return nats * len(numbers) / tokens.sum()


def _groups(task: Translations, numbers: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Places of pairs, the shortest first, and the length of the bucket of each group."""
    sizes = task.longest(numbers)
    order = np.argsort(sizes, kind="stable")
    found: list[tuple[np.ndarray, int]] = []
    for first in range(0, len(order), AT_ONCE):
        some = order[first : first + AT_ONCE]
        most = int(sizes[some].max())
        found.append((some, next(n for n in task.lengths if n >= most)))
    return found
