"""The copying task of Yun et al. 2020 (sparse): 0 s 0 s, its second half to be found."""

from dataclasses import dataclass
from typing import Any

import torch

from everyformer.data.batch import Batch, Draw
from everyformer.data.randomness import Split, random_integers
from everyformer.data.task import IGNORED, FreshTask, label_weights, told
from everyformer.errors import TrainingError


@dataclass(frozen=True)
class Copying(FreshTask):
    """The tokens 0 s M M .. M, where M is a mask; the last n/2 - 1 are to be s.

    Attributes:
        seq_len: n, even; s has n/2 - 1 symbols.
        symbols: How many different symbols there are; chance is 1 / symbols.
        seed: Of the sequences.
        evaluated: Sequences of an evaluation.

    Example:
        >>> draw = Draw(torch.tensor([0]), 8)
        >>> tokens, labels, *_ = Copying(8, 5, 0).batch("train", draw)
        >>> tokens[0, 4:].tolist(), tokens[0, 1:4].tolist() == labels[0, 5:].tolist()
        ([5, 5, 5, 5], True)
    """

    seq_len: int
    symbols: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse lengths that have no two halves."""
        super().__post_init__()
        if self.seq_len % 2 or self.seq_len < 4:
            msg = (
                f"seq_len={self.seq_len} cannot be 0 s 0 s with the same s twice. Use an "
                "even number, 4 or more."
            )
            raise TrainingError(msg)

    @property
    def length(self) -> int:
        """Every token is seen."""
        return self.seq_len

    @property
    def vocab_size(self) -> int:
        """The symbols and the mask."""
        return self.symbols + 1

    @property
    def targets(self) -> range:
        """Positions to be filled in, 0-based; each source is n/2 tokens before."""
        return range(self.seq_len // 2 + 1, self.seq_len)

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Tokens, labels, and a weight of 1 for every symbol to be found."""
        half = self.seq_len // 2
        s = random_integers(self.symbols, self.seed, split, draw.numbers, half - 1)
        blank = s.new_zeros(len(s), half)
        tokens = torch.cat([blank[:, :1], s, blank + self.symbols], dim=-1)
        labels = torch.cat([blank + IGNORED, blank[:, :1] + IGNORED, s], dim=-1)
        return Batch(tokens, labels, label_weights(labels, draw.numbers))

    def describe(self) -> dict[str, Any]:
        """Name and sizes."""
        return {"name": "copying", **told(self, "seq_len", "symbols", "seed", "evaluated")}
