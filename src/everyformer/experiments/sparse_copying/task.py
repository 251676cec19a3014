"""The copying task of Yun et al. 2020 (sparse): 0 s 0 s, its second half to be found."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from everyformer.data.randomness import Split, random_integers
from everyformer.errors import TrainingError
from everyformer.train.task import IGNORED


@dataclass(frozen=True)
class Copying:
    """The tokens 0 s M M .. M, where M is a mask; the last n/2 - 1 are to be s.

    Attributes:
        seq_len: n, even; s has n/2 - 1 symbols.
        symbols: How many different symbols there are; chance is 1 / symbols.
        seed: Of the sequences.

    Example:
        >>> tokens, labels = Copying(8, 5, 0).sample("train", torch.tensor([0]))
        >>> tokens[0, 4:].tolist(), tokens[0, 1:4].tolist() == labels[0, 5:].tolist()
        ([5, 5, 5, 5], True)
    """

    seq_len: int
    symbols: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse lengths that have no two halves."""
        if self.seq_len % 2 or self.seq_len < 4:
            msg = (
                f"seq_len={self.seq_len} cannot be 0 s 0 s with the same s twice. Use an "
                "even number, 4 or more."
            )
            raise TrainingError(msg)

    @property
    def scored(self) -> int:
        """The symbols of s."""
        return self.seq_len // 2 - 1

    @property
    def vocab_size(self) -> int:
        """The symbols and the mask."""
        return self.symbols + 1

    @property
    def targets(self) -> range:
        """Positions to be filled in, 0-based; each source is n/2 tokens before."""
        return range(self.seq_len // 2 + 1, self.seq_len)

    def sample(
        self, split: Split, indices: Int[Tensor, " b"]
    ) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
        """Tokens and labels."""
        s = random_integers(self.symbols, self.seed, split, indices, self.scored)
        half = s.new_zeros(len(s), self.seq_len // 2)
        tokens = torch.cat([half[:, :1], s, half + self.symbols], dim=-1)
        return tokens, torch.cat([half + IGNORED, half[:, :1] + IGNORED, s], dim=-1)

    def describe(self) -> dict[str, Any]:
        """Name and sizes."""
        return {
            "name": "copying",
            "seq_len": self.seq_len,
            "symbols": self.symbols,
            "seed": self.seed,
        }
