"""Tasks of GLUE: a class or a score for one text or two."""

from typing import Any

import numpy as np
import torch

from everyformer.data.batch import Batch, Draw
from everyformer.data.buckets import Bucketed, Buckets
from everyformer.data.nli import SPECIAL_TOKENS, shortened
from everyformer.data.packs.glue import MOST_SCORE, TABLES
from everyformer.data.packs.pack import Pack, needs
from everyformer.data.randomness import SPLITS, Split
from everyformer.data.resident import Resident, starts_of
from everyformer.data.task import Scores
from everyformer.data.two_texts import Spans, two_texts
from everyformer.errors import FileFormatError, InputError


class Glue(Bucketed):
    """The examples of one task, in buckets by their length.

    [CLS] A [SEP] for one text, [CLS] A [SEP] B [SEP] for two. Labels are classes; those of
    STS-B are scores between -1 and 1.

    Args:
        pack: Of GLUE.
        task: One of `packs.glue.TABLES`.
        seed: Of the order of training.
        lengths: Of the buckets; longer examples lose the end of their longer text.

    Raises:
        InputError: If there is no such task.
        FileFormatError: If the pack is of another kind, or its arrays do not fit together.
    """

    settings = ("seed", "lengths")

    def __init__(
        self, pack: Pack, task: str, seed: int, *, lengths: tuple[int, ...] = (32, 64, 128)
    ) -> None:
        if task not in TABLES:
            msg = f"{task!r} is not a task of GLUE here. Choose one of {', '.join(TABLES)}."
            raise InputError(msg)
        names = [f"{task}_{part}" for part in ("first", "second", "labels", "splits")]
        needs(pack, f"{task}_tokens", *names, tokens=(f"{task}_tokens",))
        self.pack, self.task, self.seed, self.lengths = pack, task, seed, lengths
        a, b, labels, splits = (pack.arrays[name].astype(np.int64) for name in names)
        self._check(a, b, labels, splits)
        self.pairs = len(TABLES[task].texts) == 2
        first = starts_of(a + b)
        second = first + a
        a, b = shortened(a, b, lengths[-1] - SPECIAL_TOKENS)
        self.buckets = {}
        self.sizes: dict[Split, np.ndarray] = {}
        self.labels: dict[Split, np.ndarray] = {}
        held = {"text": pack.arrays[f"{task}_tokens"]}
        for split in SPLITS:
            own = np.flatnonzero(splits == SPLITS.index(split))
            self.sizes[split] = (a + b)[own] + SPECIAL_TOKENS - (not self.pairs)
            self.buckets[split] = Buckets(self.sizes[split], lengths, seed)
            self.labels[split] = labels[own]
            held[split] = np.stack([one[own] for one in (first, a, second, b, labels)])
        self._held = Resident(held)

    @property
    def classes(self) -> int | None:
        """How many there are; None for scores."""
        found = TABLES[self.task].classes
        return None if found is None else len(found)

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Texts and their labels, (b,)."""
        held = self._held.on(draw.numbers.device)
        *spans, labels = held[split][:, draw.numbers.clamp(min=0)]
        found = two_texts(held["text"], Spans(*spans), draw.length, self.pack.specials)
        tokens, padding = found.tokens, found.padding
        if not self.pairs:  # the [SEP] of a second text that is not there
            place = torch.arange(draw.length, device=tokens.device)
            padding = place >= spans[1][:, None] + 2
            tokens = tokens.masked_fill(padding, self.pack.specials["[PAD]"])
        segments = found.segments if self.pairs else found.segments * 0
        labels = scaled_score(labels.float()) if self.classes is None else labels.long()
        return Batch(
            tokens, labels, (draw.numbers >= 0).float(), segments=segments, padding=padding
        )

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        """The scores of each example in their order, its prediction and its label."""
        found = super().judged(split, scores, numbers)
        labels = self.labels[split]
        if self.classes is None:
            return found | {"label": scaled_score(labels)}
        right = found["accuracy"] > 0.5
        return found | {"prediction": np.where(right, labels, 1 - labels), "label": labels}

    def clusters(self, split: Split) -> np.ndarray:
        """Each example is its own."""
        return np.arange(len(self.labels[split]))

    def _check(
        self, a: np.ndarray, b: np.ndarray, labels: np.ndarray, splits: np.ndarray
    ) -> None:
        tokens = len(self.pack.arrays[f"{self.task}_tokens"])
        most = MOST_SCORE if self.classes is None else 1
        total = int(a.sum() + b.sum())
        good = len({len(a), len(b), len(labels), len(splits)}) == 1 and total == tokens
        if not (good and tokens and labels.max(initial=0) <= most):
            msg = (
                f"The arrays of {self.task} in the pack {self.pack.name!r} do not fit "
                f"together: {len(a)} examples of {total} tokens, and there are {tokens}; "
                f"the largest label is {labels.max(initial=0)}. Make the pack anew."
            )
            raise FileFormatError(msg)


def scaled_score(thousandths: Any) -> Any:
    """From 0 .. 5,000 to -1 .. 1."""
    return 2.0 * thousandths / MOST_SCORE - 1.0
