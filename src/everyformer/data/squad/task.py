"""Answers as spans of a context: SQuAD 1.1 through windows."""

from functools import cached_property

import numpy as np
import torch

from everyformer.data.batch import Batch, Draw
from everyformer.data.buckets import Bucketed, Buckets
from everyformer.data.packs.pack import Pack
from everyformer.data.randomness import SPLITS, Split
from everyformer.data.resident import Resident, starts_of
from everyformer.data.squad.metric import judge
from everyformer.data.squad.texts import Texts, check_arrays
from everyformer.data.squad.windows import (
    LONGEST_QUESTION,
    SPECIAL_TOKENS,
    Windows,
    windows,
)
from everyformer.data.task import Scores
from everyformer.data.two_texts import Spans, two_texts
from everyformer.errors import InputError

FIRST, FIRST_LENGTH, SECOND, SECOND_LENGTH, START, END, LOW, HIGH = range(8)
"""Rows of the table of windows on the device."""


class Questions(Bucketed):
    """Questions and windows of their contexts, in buckets by their length.

    The label of a window is the first and last token of the answer, or (0, 0), [CLS], where
    the answer is not wholly inside. Validation questions are those of the training articles
    that were held out when the pack was made; test questions are the development set.

    Args:
        pack: Of questions.
        seed: Of the order of training.
        length: n of the windows.
        stride: Step from one window to the next.
        lengths: Of the buckets; the last is `length`.
        ambiguous: "drop" or "keep" training questions whose answer's text occurs more than
            once in its context, so that nobody knows which occurrence was meant.
    """

    task = "questions"
    settings = ("seed", "length", "stride", "lengths", "ambiguous")

    def __init__(
        self,
        pack: Pack,
        seed: int,
        *,
        length: int = 256,
        stride: int = 128,
        lengths: tuple[int, ...] = (192, 256),
        ambiguous: str = "drop",
    ) -> None:
        if ambiguous not in ("drop", "keep") or not lengths or lengths[-1] != length:
            msg = (
                f"ambiguous={ambiguous!r} and lengths={lengths} for windows of {length}: "
                "give 'drop' or 'keep', and buckets whose last length is that of a window."
            )
            raise InputError(msg)
        self.pack, self.seed, self.length, self.stride = pack, seed, length, stride
        self.lengths, self.ambiguous = lengths, ambiguous
        check_arrays(pack)
        asked, contexts = pack.arrays["questions"], pack.arrays["contexts"]
        held = {"text": np.concatenate([asked, contexts])}
        self._windows: dict[Split, Windows] = {}
        self.buckets = {}
        for split in SPLITS:
            held[split] = self._table(split)
            sizes = held[split][FIRST_LENGTH] + held[split][SECOND_LENGTH] + SPECIAL_TOKENS
            self.buckets[split] = Buckets(sizes, lengths, seed)
        self._held = Resident(held)

    def questions(self, split: Split) -> np.ndarray:
        """Numbers in the pack of the questions of a split, as they are windowed."""
        arrays = self.pack.arrays
        of_split = arrays["context_splits"][arrays["question_contexts"]]
        own = of_split == SPLITS.index(split)
        if split == "train" and self.ambiguous == "drop":
            own &= arrays["occurrences"] == 1
        return np.flatnonzero(own)

    def windows(self, split: Split) -> Windows:
        """The windows of a split; `questions` counts within it."""
        return self._windows[split]

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Windows; labels (b, 2); places (b, n): 1 where an answer may begin."""
        held = self._held.on(draw.numbers.device)
        table = held[split][:, draw.numbers.clamp(min=0)]
        found = two_texts(held["text"], Spans(*table[:4]), draw.length, self.pack.specials)
        place = torch.arange(draw.length, device=table.device)
        may_begin = (place >= table[LOW][:, None]) & (place < table[HIGH][:, None])
        labels = torch.stack((table[START], table[END]), 1).long()
        return Batch(
            found.tokens, labels, (draw.numbers >= 0).float(),
            segments=found.segments, padding=found.padding, places=may_begin.long(),
        )  # fmt: skip

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        """F1 and exact match of each question of a split, from the best of its windows.

        Args:
            split: Validation or test.
            scores: For each window "score", and "start" and "end": tokens of the window.
            numbers: Of the windows.
        """
        asked = self.questions(split)
        found: list[str | None] = [None] * len(asked)
        best = np.full(len(asked), -np.inf)
        own = self._windows[split]
        rows = zip(
            numbers.tolist(), scores["score"].tolist(), scores["start"].tolist(),
            scores["end"].tolist(), strict=True,
        )  # fmt: skip
        for number, score, start, end in sorted(rows):
            question = int(own.questions[number])
            if score > best[question]:
                best[question] = score
                of_pack = int(asked[question])
                span = self._in_context(split, number, of_pack, int(start), int(end))
                found[question] = span and self._texts.span(of_pack, *span)
        told = [
            judge(said, self._texts.answers(int(number)))
            for said, number in zip(found, asked, strict=True)
        ]
        table = np.array(told, np.float64).reshape(-1, 2)
        return {"f1": table[:, 0], "exact": table[:, 1]}

    def clusters(self, split: Split) -> np.ndarray:
        """For each question its paragraph."""
        return self.pack.arrays["question_contexts"][self.questions(split)]

    @cached_property
    def _texts(self) -> Texts:
        return Texts(self.pack)

    def _in_context(
        self, split: Split, number: int, question: int, start: int, end: int
    ) -> tuple[int, int] | None:
        """Tokens of a window as tokens of its context; None if they are not of it."""
        own = self._windows[split]
        asked = min(int(self.pack.arrays["question_lengths"][question]), LONGEST_QUESTION)
        before = 2 + asked
        first, last = start - before, end - before
        if not 0 <= first <= last < own.lengths[number]:
            return None
        return first + int(own.starts[number]), last + int(own.starts[number])

    def _table(self, split: Split) -> np.ndarray:
        """Where each window lies in the tokens, its label, and where answers may begin."""
        arrays = self.pack.arrays
        asked = self.questions(split)
        of_context = arrays["question_contexts"][asked]
        questions = arrays["question_lengths"].astype(np.int64)
        contexts = arrays["context_lengths"].astype(np.int64)
        short = np.minimum(questions[asked], LONGEST_QUESTION)
        own = windows(contexts[of_context], short, self.length, self.stride)
        self._windows[split] = own
        question = own.questions
        before = short[question] + 2
        first = starts_of(questions)[asked][question]
        context = starts_of(contexts)[of_context][question] + len(arrays["questions"])
        start = arrays["answer_first"][asked][question] - own.starts
        end = arrays["answer_last"][asked][question] - own.starts
        inside = (start >= 0) & (end < own.lengths)
        label = [np.where(inside, place + before, 0) for place in (start, end)]
        shift = before - own.starts
        return np.stack([
            first, short[question], context + own.starts, own.lengths, *label,
            own.lows + shift, own.highs + shift,
        ])  # fmt: skip
