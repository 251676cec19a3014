"""Running text in streams: every sequence of an update goes on where it was before.

The training text of N tokens is a ring, cut into `batch` streams of N // batch tokens.
Update t of a pass reads the tokens t n .. (t + 1) n - 1 of each, and the token after each
is its label. A pass begins at a place that is a hash of (seed, pass), and with an empty
memory. So an update is a function of (seed, step), as everywhere.

An evaluation reads a whole text as one stream. The first token is predicted from `<eos>`;
every token counts. Its losses are summed over blocks of `BLOCK` tokens: a score is such a
sum, scaled so that the mean over blocks is the mean over tokens.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.documents import BLOCK, in_blocks
from everyformer.data.draws import consecutive
from everyformer.data.packs.pack import Pack, article_lengths, needs
from everyformer.data.packs.reading import EOS
from everyformer.data.randomness import SPLITS, Split, mixed, mixed_key, scaled
from everyformer.data.resident import Resident
from everyformer.data.task import IGNORED
from everyformer.errors import FileFormatError, InputError, TrainingError

PASSES = 7
"""What the key of a seed is for."""


@dataclass(frozen=True)
class Reading:
    """How a text is read in an evaluation.

    Attributes:
        name: Of the score: nats of a token.
        length: Tokens of a segment; every reading of a task has another one.
        places: Tokens of the memory.
        clamp: Distances beyond count as this one.
        same_length: Whether every token sees `places` tokens, whatever the segments.
    """

    name: str
    length: int
    places: int
    clamp: int | None = None
    same_length: bool = False


class Streams:
    """The texts of a pack of words, read in streams.

    Args:
        pack: With the texts train, validation and test, and their articles.
        batch: Streams.
        length: Tokens of a training segment, n.
        seed: Of the places where passes begin.
        readings: Of evaluations; the first is that of the validation text too.
        most: Tokens of validation and test texts that are read; None for all.
    """

    def __init__(
        self,
        pack: Pack,
        batch: int,
        length: int,
        seed: int,
        readings: tuple[Reading, ...],
        most: int | None = None,
    ) -> None:
        names = [f"{split}_articles" for split in SPLITS]
        needs(pack, *SPLITS, *names, tokens=SPLITS)
        if EOS not in pack.specials:
            msg = (
                f"The pack {pack.name!r} has no {EOS}: it holds WordPieces, and streams "
                "read whole words. `everyformer data list` says which packs are for what."
            )
            raise FileFormatError(msg)
        for split in SPLITS:
            article_lengths(pack, split, "words")
        self.pack, self.batch_size, self.length, self.seed = pack, batch, length, seed
        self.readings, self.most = readings, most
        self._check()
        texts = {split: pack.arrays[split] for split in SPLITS}
        self._held = Resident(
            {s: t if s == "train" else t[:most] for s, t in texts.items()}
        )

    @property
    def updates(self) -> int:
        """Of a pass."""
        return len(self.pack.arrays["train"]) // self.batch_size // self.length

    def tokens(self, split: Split) -> int:
        """Of a text, as far as it is scored."""
        count = len(self.pack.arrays[split])
        return count if self.most is None else min(count, self.most)

    def draw(
        self, step: int, batch: int, part: int, parts: int, device: torch.device
    ) -> Draw:
        """The segments of some streams in update `step`: step * batch + stream.

        Raises:
            InputError: If the batch is not the number of streams.
        """
        if batch != self.batch_size:
            msg = (
                f"An update of {batch} sequences cannot go on {self.batch_size} streams. "
                "Make the task with as many streams as the batch has sequences."
            )
            raise InputError(msg)
        return consecutive(step * batch, batch, part, parts, self.length, device)

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """One segment after the other, all read by the first part."""
        for reading in self._readings(split):
            first = self._first(split, reading)
            for place in range(first, first + self._segments(split, reading)):
                number = place if part == 0 else FILLING
                yield Draw(torch.tensor([number], device=device), reading.length)

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Tokens, and the ones after them as labels."""
        text = self._held.on(draw.numbers.device)[split]
        if split == "train":
            return self._training(text, draw)
        reading = next(one for one in self.readings if one.length == draw.length)
        numbers = draw.numbers - self._first(split, reading)
        places = numbers.clamp(min=0)[:, None] * draw.length
        places = places + torch.arange(draw.length, device=text.device)
        real = (places < len(text)) & (draw.numbers != FILLING)[:, None]
        before = text[(places - 1).clamp(0, len(text) - 1)].long()
        tokens = torch.where(places == 0, self.pack.specials[EOS], before)
        labels = text[places.clamp(max=len(text) - 1)].long()
        return Batch(
            tokens, torch.where(real, labels, IGNORED), real.float(),
            streams=torch.zeros_like(draw.numbers), fresh=numbers == 0,
        )  # fmt: skip

    def judged(
        self, split: Split, scores: dict[str, np.ndarray], numbers: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Nats of every block, by the name of each reading."""
        found: dict[str, np.ndarray] = {}
        for reading in self._readings(split):
            first, count = self._first(split, reading), self.tokens(split)
            rows = scores["losses"][first : first + self._segments(split, reading)]
            losses = rows[:, : reading.length].reshape(-1)[:count]
            if len(losses) != count:
                msg = f"{len(losses):,} of {count:,} tokens of {split} were scored."
                raise TrainingError(f"{msg} Perplexity counts all: read every segment.")
            found[reading.name] = in_blocks(losses, np.array([count]))
        return found

    def clusters(self, split: Split) -> np.ndarray:
        """For each block the article in which it begins."""
        starts = np.arange(0, self.tokens(split), BLOCK)
        articles = self.pack.arrays[f"{split}_articles"]
        return np.searchsorted(articles, starts, "right") - 1

    def describe(self) -> dict[str, Any]:
        """Pack and settings."""
        return {
            "task": "streams",
            "pack": self.pack.name,
            "pack_sha256": self.pack.sha256,
            "batch": self.batch_size,
            "length": self.length,
            "seed": self.seed,
            "readings": [asdict(reading) for reading in self.readings],
            "most": self.most,
        }

    def _training(self, text: torch.Tensor, draw: Draw) -> Batch:
        count, updates = len(text), self.updates
        step, stream = draw.numbers // self.batch_size, draw.numbers % self.batch_size
        turn = mixed(mixed_key(self.seed, PASSES), step // updates)
        starts = scaled(turn, count) + stream * (count // self.batch_size)
        starts = starts + step % updates * self.length
        places = starts[:, None] + torch.arange(self.length + 1, device=text.device)
        found = text[places % count].long()
        weights = torch.ones(found[:, 1:].shape, device=text.device)
        return Batch(
            found[:, :-1].contiguous(), found[:, 1:].contiguous(), weights,
            streams=stream, fresh=step % updates == 0,
        )  # fmt: skip

    def _readings(self, split: Split) -> tuple[Reading, ...]:
        return self.readings if split == "test" else self.readings[:1]

    def _segments(self, split: Split, reading: Reading) -> int:
        return -(-self.tokens(split) // reading.length)

    def _first(self, split: Split, reading: Reading) -> int:
        """The number of the first segment of a reading."""
        before = self.readings[: self.readings.index(reading)]
        return sum(self._segments(split, one) for one in before)

    def _check(self) -> None:
        """Refuse what leaves no update, or readings that cannot be told apart.

        Raises:
            InputError: With all that is wrong.
        """
        wrong: list[str] = []
        if self.batch_size < 1 or self.length < 1:
            wrong.append(f"{self.batch_size} streams of segments of {self.length} tokens")
        elif self.updates < 1:
            count = len(self.pack.arrays["train"])
            wrong.append(
                f"{count:,} training tokens in {self.batch_size} streams leave no segment "
                f"of {self.length}"
            )
        lengths = [one.length for one in self.readings]
        if not lengths or len(set(lengths)) != len(lengths) or min(lengths) < 1:
            wrong.append(f"readings of {lengths} tokens: give lengths that differ")
        if self.most is not None and self.most < 1:
            wrong.append(f"most={self.most} tokens leave nothing to evaluate")
        if wrong:
            msg = f"Streams of {self.pack.name!r}: {'; '.join(wrong)}."
            raise InputError(f"{msg} Change these settings, or use a larger pack.")
