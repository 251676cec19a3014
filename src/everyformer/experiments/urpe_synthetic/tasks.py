"""The two synthetic tasks of Luo et al. 2022, on fresh uniform tokens.

    PI:   f(w_1, .., w_n) = (1, 2, .., n)
    ETP:  f(w_1, .., w_n) = (w_2, w_4, .., w_n, EOS, .., EOS)

Differs from the released code, on purpose: the labels of PI are 0 .. n - 1, apart from any
padding id (there, position 1 had the label of padding and was not scored); all |V| tokens
are drawn (there, |V| - 20); and a sequence is a function of (seed, split, number), so that
training and validation share none (there, both began from one seed).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from everyformer.data.batch import Batch, Draw
from everyformer.data.randomness import Split, random_integers
from everyformer.data.task import IGNORED, FreshTask, label_weights, told
from everyformer.errors import TrainingError


@dataclass(frozen=True)
class Synthetic(FreshTask):
    """Position identification ("pi") or even token prediction ("etp").

    Attributes:
        kind: Which.
        seq_len: n.
        tokens: |V|; the id of EOS is |V|.
        seed: Of the sequences.
        special: Whether a token of its own stands before the others, without a label.
        evaluated: Sequences of an evaluation.

    Example:
        >>> task = Synthetic("etp", seq_len=4, tokens=10, seed=0)
        >>> words, labels, *_ = task.batch("train", Draw(torch.tensor([0]), 4))
        >>> labels[0, :2].tolist() == words[0, 1::2].tolist(), labels[0, 2:].tolist()
        (True, [10, 10])
    """

    kind: Literal["pi", "etp"]
    seq_len: int
    tokens: int
    seed: int
    special: bool = False

    def __post_init__(self) -> None:
        """Refuse an odd length: ETP takes every second token."""
        super().__post_init__()
        if self.kind == "etp" and self.seq_len % 2:
            msg = (
                f"seq_len={self.seq_len} is odd, but even token prediction takes every "
                f"second token and fills up with EOS. Use {self.seq_len + 1}."
            )
            raise TrainingError(msg)

    @property
    def length(self) -> int:
        """Number of tokens that a model sees."""
        return self.seq_len + self.special

    @property
    def vocab_size(self) -> int:
        """Ids that a model must know: the tokens, for ETP also EOS, the special one."""
        return self.tokens + (self.kind == "etp") + self.special

    @property
    def chance(self) -> float:
        """What no model without positions exceeds in expectation: 1/n, and 1/2.

        Without positions a label is predicted equally often at every position; summed
        over positions, one of n is right for PI, and n/2 of n for ETP if it is EOS.
        """
        return 1 / self.seq_len if self.kind == "pi" else 0.5

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Tokens, labels, and a weight of 1 for every label."""
        numbers = draw.numbers
        words = random_integers(self.tokens, self.seed, split, numbers, self.seq_len)
        if self.kind == "pi":
            labels = torch.arange(self.seq_len, device=words.device).expand_as(words)
        else:
            end = torch.full_like(words[:, 1::2], self.tokens)
            labels = torch.cat([words[:, 1::2], end], dim=-1)
        if self.special:
            first = torch.full_like(words[:, :1], self.vocab_size - 1)
            words = torch.cat([first, words], dim=-1)
            labels = torch.cat([torch.full_like(first, IGNORED), labels], dim=-1)
        return Batch(words, labels, label_weights(labels, numbers))

    def describe(self) -> dict[str, Any]:
        """Name and sizes."""
        sizes = told(self, "seq_len", "tokens", "seed", "special", "evaluated")
        return {"name": self.kind, **sizes}
