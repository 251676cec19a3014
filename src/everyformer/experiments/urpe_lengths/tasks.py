"""What is learnt at one length and asked at others.

    copy:  f(w_1, .., w_n)_i = w_{i-k}            fresh random tokens
    text:  f(w_1, .., w_n)_i = w_{i+1}            bytes of a text

Training has sequences of n tokens. The test has several lengths; of each sequence the last
n - k tokens are scored, whatever stands before them, so that at 2n and more only tokens
count that stand where no token of the training stood. For text these are the same bytes at
every length, with more and more of the text before them.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.randomness import Split, mixed, mixed_key, random_integers, scaled
from everyformer.data.resident import Resident
from everyformer.data.task import (
    IGNORED,
    FreshTask,
    Scores,
    evaluation_draws,
    label_weights,
    told,
)
from everyformer.errors import TrainingError

BYTES = 256
SHARES = (0.9, 0.95)
"""Where validation and test begin in a text that is not split already."""


@dataclass(frozen=True, kw_only=True)
class AtLengths(FreshTask):
    """Sequences of `seq_len` tokens, tested at several lengths.

    Example `number` of the test at the k-th length has the number k evaluated + number.

    Attributes:
        seq_len: n, of training and validation.
        lengths: Of the test, the first is n.
        seed: Of the sequences.
    """

    seq_len: int
    lengths: tuple[int, ...]
    seed: int

    def __post_init__(self) -> None:
        """Refuse lengths that do not begin with that of training."""
        super().__post_init__()
        if self.lengths[:1] != (self.seq_len,) or min(self.lengths) < self.seq_len:
            msg = (
                f"lengths={self.lengths} must begin with seq_len={self.seq_len}, the "
                "length of training, and go on with longer ones."
            )
            raise TrainingError(msg)

    @property
    def length(self) -> int:
        """The length of the sequences of training."""
        return self.seq_len

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """See `Task.evaluation`; the test has every length."""
        lengths = self.lengths if split == "test" else self.lengths[:1]
        for place, n in enumerate(lengths):
            first = place * self.evaluated
            for draw in evaluation_draws(self.evaluated, batch, part, parts, n, device):
                numbers = draw.numbers
                yield Draw(torch.where(numbers == FILLING, FILLING, numbers + first), n)

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        """The scores of training's length, and those of length m under "name@m"."""
        count = self.evaluated
        if split != "test":
            return scores
        return {name: rows[:count] for name, rows in scores.items()} | {
            f"{name}@{n}": rows[place * count : (place + 1) * count]
            for name, rows in scores.items()
            for place, n in enumerate(self.lengths)
        }

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Tokens, labels, and a weight of 1 for every label that is scored."""
        examples = torch.where(draw.numbers < 0, 0, draw.numbers)
        if split == "test":
            examples = examples % self.evaluated
        tokens, labels = self.sequences(split, examples, draw.length)
        places = torch.arange(draw.length, device=tokens.device)
        labels = torch.where(places < draw.length - self.scored, IGNORED, labels)
        return Batch(tokens, labels, label_weights(labels, draw.numbers))

    @property
    @abstractmethod
    def scored(self) -> int:
        """How many tokens at the end of a sequence have a label."""

    @abstractmethod
    def sequences(
        self, split: Split, examples: Int[Tensor, " b"], n: int
    ) -> tuple[Int[Tensor, "b {n}"], Int[Tensor, "b {n}"]]:
        """Tokens and labels of these examples at this length."""


@dataclass(frozen=True, kw_only=True)
class OffsetCopy(AtLengths):
    """The token k places before each token, on fresh uniform tokens.

    Attributes:
        offset: k.
        tokens: How many different ones there are.

    Example:
        >>> task = OffsetCopy(seq_len=4, lengths=(4, 8), seed=0, offset=2, tokens=9)
        >>> found = task.batch("train", Draw(torch.tensor([0]), 4))
        >>> found.labels[0, 2:].tolist() == found.tokens[0, :2].tolist()
        True
    """

    offset: int
    tokens: int

    def __post_init__(self) -> None:
        """Refuse an offset that leaves nothing to copy."""
        super().__post_init__()
        if not 0 < self.offset < self.seq_len:
            msg = (
                f"offset={self.offset} leaves nothing to copy in {self.seq_len} tokens. "
                f"Use 1 to {self.seq_len - 1}."
            )
            raise TrainingError(msg)

    @property
    def vocab_size(self) -> int:
        """The tokens alone."""
        return self.tokens

    @property
    def scored(self) -> int:
        """n - k: the first k tokens of training's length have nothing before them."""
        return self.seq_len - self.offset

    def sequences(
        self, split: Split, examples: Int[Tensor, " b"], n: int
    ) -> tuple[Int[Tensor, "b {n}"], Int[Tensor, "b {n}"]]:
        """Fresh tokens, and the same k places later."""
        tokens = random_integers(self.tokens, self.seed, split, examples, n)
        return tokens, tokens.roll(self.offset, -1)

    def describe(self) -> dict[str, Any]:
        """Name and sizes."""
        sizes = told(self, "seq_len", "lengths", "offset", "tokens", "seed", "evaluated")
        return {"name": "copy", **sizes}


@dataclass(frozen=True, kw_only=True)
class NextByte(AtLengths):
    """The next byte of a text; windows of the training text begin anywhere.

    Attributes:
        name: Of the text, with its sha256.
        texts: The bytes of train, validation and test.
    """

    name: str
    texts: Mapping[str, np.ndarray] = field(repr=False, compare=False)
    held: Resident = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse texts that are too short."""
        super().__post_init__()
        least = 2 * self.lengths[-1] + 2
        short = {
            split: len(text) for split, text in self.texts.items() if len(text) < least
        }
        if short:
            told = ", ".join(f"{split} has {count} bytes" for split, count in short.items())
            msg = (
                f"The text {self.name} is too short for sequences of {self.lengths[-1]}: "
                f"{told}, and {least} are needed. Give a longer text."
            )
            raise TrainingError(msg)
        object.__setattr__(self, "held", Resident({**self.texts}))

    @property
    def vocab_size(self) -> int:
        """The number of tokens: every byte is one."""
        return BYTES

    @property
    def scored(self) -> int:
        """All n of training's length."""
        return self.seq_len

    def sequences(
        self, split: Split, examples: Int[Tensor, " b"], n: int
    ) -> tuple[Int[Tensor, "b {n}"], Int[Tensor, "b {n}"]]:
        """Windows that end at the same byte whatever their length, and what follows."""
        text = self.held.on(examples.device)[split]
        longest = self.lengths[-1] if split == "test" else n
        room = len(text) - longest - 1
        if split == "train":
            starts = scaled(mixed(mixed_key(self.seed), examples), room)
        else:
            starts = examples * room // max(1, self.evaluated - 1)
        places = (starts + longest - n)[:, None] + torch.arange(n + 1, device=text.device)
        window = text[places].long()
        return window[:, :-1], window[:, 1:]

    def describe(self) -> dict[str, Any]:
        """Text and sizes."""
        sizes = told(self, "seq_len", "lengths", "seed", "evaluated")
        return {"name": "text", "text": self.name, **sizes}
