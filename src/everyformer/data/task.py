"""What is learnt: a task names its examples by numbers, and makes batches of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.draws import consecutive
from everyformer.data.randomness import Split
from everyformer.errors import TrainingError

IGNORED = -100
"""The label of a token that is not scored; its weight is 0."""

Scores = dict[str, np.ndarray]
"""Numbers by name, one row for each example."""


@runtime_checkable
class Task(Protocol):
    """Examples as a function of their number: no loader, and no state of one.

    A draw is made by Python and is cheap. A batch is made on the device, without reading a
    number from it and with shapes that the draw alone decides, because a CUDA graph replays
    it together with the update.
    """

    def draw(
        self, step: int, batch: int, part: int, parts: int, device: torch.device
    ) -> Draw:
        """The training examples of one of the `parts` of update `step`.

        Args:
            step: Updates done before.
            batch: Examples of the whole update, a multiple of `parts`.
            part: Which part, from 0 on.
            parts: Processes times accumulated parts.
            device: Where the numbers are wanted.
        """
        ...

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """Every scored example of a split, once over all parts.

        All parts give equally many draws of equal shapes, filled up with `FILLING`.
        """
        ...

    def batch(self, split: Split, draw: Draw) -> Batch:
        """The tensors of these examples; the weights of filling are 0."""
        ...

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        """From what an objective says of each example to the numbers that are reported.

        Args:
            split: Of the examples.
            scores: Rows in the order of `numbers`, without filling.
            numbers: Of the examples, ascending.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What the task is, as JSON holds it; part of the identity of a run."""
        ...


@dataclass(frozen=True, kw_only=True)
class FreshTask(ABC):
    """What tasks of one length share whose every number is another example.

    An update takes the numbers step * batch .. (step + 1) * batch - 1, whoever computes
    which of them; an evaluation takes 0 .. evaluated - 1 of its split.

    Attributes:
        evaluated: Examples of an evaluation.
    """

    evaluated: int = 256

    def __post_init__(self) -> None:
        """Refuse evaluations of one example."""
        if self.evaluated < 2:
            msg = f"evaluated={self.evaluated} gives no standard error; use 2 or more."
            raise TrainingError(msg)

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens that a model sees."""

    def draw(
        self, step: int, batch: int, part: int, parts: int, device: torch.device
    ) -> Draw:
        """See `Task.draw`."""
        return consecutive(step * batch, batch, part, parts, self.length, device)

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """See `Task.evaluation`."""
        return evaluation_draws(self.evaluated, batch, part, parts, self.length, device)

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        """The scores themselves."""
        return scores


def told(own: object, *names: str) -> dict[str, Any]:
    """Attributes of a task by their names, as JSON holds them."""
    found = ((name, getattr(own, name)) for name in names)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found}


def label_weights(
    labels: Int[Tensor, "b n"], numbers: Int[Tensor, " b"]
) -> Float[Tensor, "b n"]:
    """1 for every label of every example, 0 for ignored ones and for filling."""
    return ((labels != IGNORED) & (numbers != FILLING)[:, None]).float()


def evaluation_draws(
    count: int, batch: int, part: int, parts: int, length: int, device: torch.device
) -> Iterator[Draw]:
    """The numbers 0 .. count - 1, shared out over parts.

    Example:
        >>> cpu = torch.device("cpu")
        >>> [d.numbers.tolist() for d in evaluation_draws(5, 2, 1, 2, 8, cpu)]
        [[2, 3], [-1, -1]]
    """
    size = min(batch, -(-count // parts))
    for start in range(0, count, size * parts):
        first = start + part * size
        numbers = torch.arange(first, first + size, device=device)
        yield Draw(numbers.where(numbers < count, FILLING), length)
