"""What is learnt: a task gives sequences and a label for every token of them."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from everyformer.data.randomness import Split

IGNORED = -100
"""The label of a token that is not scored."""


@runtime_checkable
class Task(Protocol):
    """Sequences as a function of their number; nothing is stored and nothing repeats."""

    @property
    def seq_len(self) -> int:
        """Number of tokens of a sequence."""
        ...

    @property
    def scored(self) -> int:
        """Number of tokens of a sequence that have a label; the same for all."""
        ...

    def sample(
        self, split: Split, indices: Int[Tensor, " b"]
    ) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
        """Tokens and labels of the sequences with these numbers, on their device."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the task is, as JSON holds it."""
        ...


@dataclass(frozen=True)
class Repeated:
    """The same few sequences in training and in validation: a leak, made on purpose.

    A control for the theorem that a model without positions reads a position with
    accuracy at most 1/n from fresh tokens: with this data it does better, by memory.
    """

    task: Task
    sequences: int

    @property
    def seq_len(self) -> int:
        """As without the leak."""
        return self.task.seq_len

    @property
    def scored(self) -> int:
        """As without the leak."""
        return self.task.scored

    def sample(
        self, split: Split, indices: Int[Tensor, " b"]
    ) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
        """The first few sequences of the training set, again and again."""
        return self.task.sample("train", indices % self.sequences)

    def describe(self) -> dict[str, Any]:
        """The task, and how many of its sequences there are."""
        return self.task.describe() | {"repeated_sequences": self.sequences}


def share(
    config_batch: int, step: int, part: int, parts: int, device: torch.device
) -> Int[Tensor, " b"]:
    """Numbers of the sequences that one of `parts` equal parts of an update holds."""
    size = config_batch // parts
    first = step * config_batch + part * size
    return torch.arange(first, first + size, device=device)
