"""Scores of examples, and their means with standard errors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.randomness import Split
from everyformer.data.task import Scores, Task
from everyformer.errors import TrainingError


@dataclass(frozen=True)
class Score:
    """The mean of one number over examples, with its standard error.

    The error is that of the mean of the examples' own numbers: labels within a sequence are
    not independent.
    """

    mean_sampled: float
    standard_error_sampled: float
    examples: int


def summaries(scores: Scores) -> dict[str, Score]:
    """The mean of each name, over what is a number for each example.

    Example:
        >>> summaries({"accuracy": np.array([0.0, 1.0, 1.0, 1.0])})["accuracy"].mean_sampled
        0.75
    """
    return {name: _summary(rows) for name, rows in scores.items() if rows.ndim == 1}


def _summary(rows: np.ndarray) -> Score:
    values = rows.astype(np.float64)
    error = float(values.std(ddof=1)) / math.sqrt(len(rows)) if len(rows) > 1 else math.nan
    return Score(float(values.mean()), error, len(rows))


@torch.no_grad()
def scores_of(
    task: Task,
    split: Split,
    score: Callable[[Batch], dict[str, Tensor]],
    accelerator: Accelerator,
    batch: int,
    recorded: Callable[[Draw], dict[str, Tensor]] | None = None,
) -> Scores:
    """The scores of every example of a split, as the task judges them.

    Every process scores its part; rows are in the order of the numbers of the examples,
    whoever scored them, so that means have the same bits. `recorded` is `score` of the
    batch of a draw, as one graph.

    Raises:
        TrainingError: If the task draws no example, or one twice.
    """
    numbers: list[Tensor] = []
    found: dict[str, list[Tensor]] = {}
    parts, device = accelerator.num_processes, accelerator.device
    for draw in task.evaluation(split, batch, accelerator.process_index, parts, device):
        numbers.append(draw.numbers)
        own = score(task.batch(split, draw)) if recorded is None else recorded(draw)
        for name, rows in own.items():
            found.setdefault(name, []).append(rows)
    if not numbers:
        raise _wrong_draws(split, "no example")
    drawn = _gathered(accelerator, numbers)
    order = np.argsort(drawn, kind="stable")
    order = order[drawn[order] != FILLING]
    chosen = drawn[order]
    if not len(chosen) or (chosen[1:] == chosen[:-1]).any():
        raise _wrong_draws(split, "no example" if not len(chosen) else "an example twice")
    rows = {name: _gathered(accelerator, own)[order] for name, own in found.items()}
    return task.judged(split, rows, chosen)


def _gathered(accelerator: Accelerator, rows: list[Tensor]) -> np.ndarray:
    joined = torch.cat(rows)
    if accelerator.num_processes > 1:
        joined = cast("Tensor", accelerator.gather(joined))
    return joined.cpu().numpy()


def _wrong_draws(split: Split, what: str) -> TrainingError:
    return TrainingError(
        f"The task draws {what} in an evaluation of {split}, so a mean would say nothing "
        "of that split. Its `evaluation` must give every example once, over all parts."
    )
