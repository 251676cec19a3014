"""Running text for language models: packed windows, and documents read one by one.

Training text is all documents one after the other, [SEP] before each. Window i of epoch e
holds the n tokens from i n + h(e) on, h a hash; the token after each is its label. Windows
do not respect the ends of documents.

An evaluation reads every document alone. Its first window begins with [SEP] and scores its
whole length. With a context of c tokens, later windows begin n - c tokens further each and
score what no window before has scored: at least c tokens are seen before every scored one.
So every token of a document is scored once, and [SEP] is not. The losses are summed over
blocks of `BLOCK` tokens of a document: a score is such a sum, scaled so that the mean over
blocks is the mean over tokens.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from everyformer.data.batch import Batch, Draw
from everyformer.data.draws import every
from everyformer.data.order import Order
from everyformer.data.pack_task import PackTask
from everyformer.data.packs.pack import Pack, article_lengths, needs
from everyformer.data.randomness import SPLITS, Split, mixed, mixed_key, scaled
from everyformer.data.resident import Resident, starts_of
from everyformer.data.task import IGNORED, Scores
from everyformer.errors import FileFormatError, InputError, TrainingError

BLOCK = 64
"""Tokens of a score."""

ORDER, EPOCHS = 11, 12
"""What the key of a seed is for."""


class Windows(NamedTuple):
    """Windows of documents: label `first` .. `last` - 1 of each are scored.

    Attributes:
        document: Whose window it is.
        offset: Place of its first label in the document.
        first: The first label that is scored.
        last: One beyond the last.
    """

    document: Int[np.ndarray, " w"]
    offset: Int[np.ndarray, " w"]
    first: Int[np.ndarray, " w"]
    last: Int[np.ndarray, " w"]


def windows_of(lengths: Int[np.ndarray, " documents"], n: int, context: int) -> Windows:
    """Windows of n labels that score every token of every document once.

    Example:
        >>> found = windows_of(np.array([9, 3]), 4, 2)
        >>> found.document.tolist(), found.offset.tolist()
        ([0, 0, 0, 0, 1], [0, 2, 4, 6, 0])
        >>> found.first.tolist(), found.last.tolist()
        ([0, 2, 2, 2, 0], [4, 4, 4, 3, 3])
    """
    step = n - context
    later = np.maximum(0, -(-(lengths - n) // step))
    counts = 1 + later
    document = np.repeat(np.arange(len(lengths)), counts)
    turn = np.arange(counts.sum()) - np.repeat(starts_of(counts), counts)
    offset = turn * step
    first = np.where(turn == 0, 0, context)
    return Windows(document, offset, first, np.minimum(n, lengths[document] - offset))


def in_blocks(
    losses: Float[np.ndarray, " tokens"], lengths: Int[np.ndarray, " documents"]
) -> Float[np.ndarray, " blocks"]:
    """Sums over blocks of each document, times blocks / tokens: their mean is the losses'.

    Example:
        >>> losses = np.arange(100.0)
        >>> found = in_blocks(losses, np.array([100]))
        >>> float(found.mean()), len(found)
        (49.5, 2)
    """
    blocks = -(-lengths // BLOCK)
    turn = np.arange(blocks.sum()) - np.repeat(starts_of(blocks), blocks)
    starts = np.repeat(starts_of(lengths), blocks) + turn * BLOCK
    sums = np.add.reduceat(losses.astype(np.float64), starts)
    return sums * (len(starts) / len(losses))


class Documents(PackTask):
    """The documents of a pack.

    Args:
        pack: With the texts train, validation and test, and where articles begin.
        seq_len: n.
        seed: Of the order of training windows.
        contexts: Of the readings of the test text, by the name of their score. The
            validation text is read as the first.
        most: Documents of an evaluation; None for all.
    """

    task = "documents"
    settings = ("seq_len", "seed", "contexts", "most")

    def __init__(
        self,
        pack: Pack,
        seq_len: int,
        seed: int,
        contexts: Mapping[str, int],
        most: int | None = None,
    ) -> None:
        needs(pack, *SPLITS, *(f"{split}_articles" for split in SPLITS), tokens=SPLITS)
        if "[SEP]" not in pack.specials:
            msg = (
                f"The pack {pack.name!r} has no [SEP]: it does not hold WordPieces. "
                "`everyformer data list` says which packs are for what."
            )
            raise FileFormatError(msg)
        self.pack, self.seq_len, self.seed = pack, seq_len, seed
        self.contexts, self.most = dict(contexts), most
        self.lengths = {split: article_lengths(pack, split) for split in SPLITS}
        self._check()
        for split in ("validation", "test"):
            self.lengths[split] = self.lengths[split][:most]
        self.windows = self._read()
        self._order = Order(self.epoch, mixed_key(seed, ORDER))
        held = {split: _separated(pack, split) for split in SPLITS}
        for split, windows in self.windows.items():
            place = 1 + np.arange(len(self.lengths[split])) + starts_of(self.lengths[split])
            held[f"{split} windows"] = np.stack(
                [place[windows.document] - 1 + windows.offset, windows.first, windows.last]
            )
        self._held = Resident(held)

    @property
    def epoch(self) -> int:
        """Training windows of an epoch."""
        text = len(self.pack.arrays["train"]) + len(self.lengths["train"])
        return text // self.seq_len - 1

    def tokens(self, split: Split) -> int:
        """How many tokens of a split are scored."""
        return int(self.lengths[split].sum())

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """Every window of every reading, once."""
        count = len(self.windows[split].document)
        return every(count, batch, part, parts, self.seq_len, device)

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Tokens, and the ones after them as labels."""
        held = self._held.on(draw.numbers.device)
        text, n = held[split], draw.length
        numbers, place = (
            draw.numbers.long().clamp(min=0),
            torch.arange(n + 1, device=text.device),
        )
        if split == "train":
            epochs = numbers // self.epoch
            starts = self._order.at(epochs, numbers % self.epoch) * n
            starts = starts + scaled(mixed(mixed_key(self.seed, EPOCHS), epochs), n)
            found = text[starts[:, None] + place].long()
            scored = (draw.numbers >= 0)[:, None].expand(-1, n)
        else:
            starts, first, last = held[f"{split} windows"][:, numbers, None].long()
            found = text[(starts + place).clamp(max=len(text) - 1)].long()
            scored = (place[:-1] >= first) & (place[:-1] < last)
            scored = scored & (draw.numbers >= 0)[:, None]
        labels = found[:, 1:].masked_fill(~scored, IGNORED)
        return Batch(found[:, :-1].contiguous(), labels, scored.float())

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        """Nats of every block, by the name of each reading."""
        windows, losses = self.windows[split], scores["losses"]
        place = np.arange(self.seq_len)
        chosen = (place >= windows.first[:, None]) & (place < windows.last[:, None])
        count, names = self.tokens(split), self._readings(split)
        if len(losses) != len(chosen) or chosen.sum() != count * len(names):
            msg = (
                f"{len(losses):,} of {len(chosen):,} windows of {split} were scored. "
                "Perplexity counts every token once: read every window."
            )
            raise TrainingError(msg)
        in_order = losses[chosen].reshape(len(names), count)
        return {
            name: in_blocks(row, self.lengths[split])
            for name, row in zip(names, in_order, strict=True)
        }

    def clusters(self, split: Split) -> np.ndarray:
        """For each block its document."""
        blocks = -(-self.lengths[split] // BLOCK)
        return np.repeat(np.arange(len(blocks)), blocks)

    def _readings(self, split: Split) -> list[str]:
        names = list(self.contexts)
        return names if split == "test" else names[:1]

    def _read(self) -> dict[str, Windows]:
        """The windows of all readings of a split, one reading after the other."""
        found: dict[str, Windows] = {}
        for split in ("validation", "test"):
            each = [
                windows_of(self.lengths[split], self.seq_len, self.contexts[name])
                for name in self._readings(split)
            ]
            found[split] = Windows(*map(np.concatenate, zip(*each, strict=True)))
        return found

    def _check(self) -> None:
        """Refuse what leaves no window, or a context that leaves nothing to score.

        Raises:
            InputError: With all that is wrong.
        """
        wrong: list[str] = []
        if self.seq_len < 2:
            wrong.append(f"windows of {self.seq_len} tokens: give 2 or more")
        elif self.epoch < 1:
            count = len(self.pack.arrays["train"])
            wrong.append(f"{count:,} training tokens leave no window of {self.seq_len}")
        if not self.contexts:
            wrong.append("no reading: give at least one context")
        wrong += [
            f"a context of {context} tokens ({name}) in windows of {self.seq_len}"
            for name, context in self.contexts.items()
            if not 0 <= context < self.seq_len
        ]
        if self.most is not None and self.most < 1:
            wrong.append(f"most={self.most} documents leave nothing to evaluate")
        if wrong:
            msg = f"Documents of {self.pack.name!r}: {'; '.join(wrong)}."
            raise InputError(f"{msg} Change these settings, or use a larger pack.")


def _separated(pack: Pack, split: Split) -> np.ndarray:
    """All documents, [SEP] before each."""
    starts = pack.arrays[f"{split}_articles"]
    return np.insert(pack.arrays[split], starts, pack.specials["[SEP]"])
