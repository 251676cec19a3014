"""One entry of a table: what is run for it, and what comes out."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from everyformer.data.task import Task
from everyformer.train.config import TrainConfig
from everyformer.train.loop import Watch, nobody, train
from everyformer.train.objective import Objective

Size = Literal["smoke", "small", "paper"]
"""Seconds in CI, minutes on a laptop, and the sizes of the paper."""


@dataclass(frozen=True)
class Surroundings:
    """Where a cell may write, and until when it may run."""

    folder: Path | None = None
    resume: bool = False
    deadline: float | None = None
    watch: Watch = nobody


@dataclass(frozen=True)
class Result:
    """What a cell gave.

    Attributes:
        value_sampled: The number of the table.
        standard_error_sampled: Of that number; None where it has none.
        complete: False where a deadline ended the run.
        more: All else that is worth keeping, as JSON holds it.
    """

    value_sampled: float
    standard_error_sampled: float | None
    complete: bool
    more: dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """An entry of a table.

    Attributes:
        labels: Row and column, in the order in which they are shown.
        settings: Everything that decides the result, as JSON holds it.
        run: Makes the result.
    """

    labels: Mapping[str, str | int]
    settings: Mapping[str, Any]
    run: Callable[[Surroundings], Result]

    @property
    def name(self) -> str:
        """The labels, joined: what `--only` is compared with."""
        return "/".join(str(label) for label in self.labels.values())


def training_cell(
    labels: Mapping[str, str | int],
    build: Callable[[], Objective],
    model: Mapping[str, Any],
    task: Task,
    config: TrainConfig,
    more: Mapping[str, Any],
) -> Cell:
    """A cell whose result is the first score of a trained objective on the test set.

    Args:
        labels: Row and column.
        build: Makes the objective.
        model: What it is, as JSON holds it.
        task: What is learnt.
        config: How.
        more: Numbers to keep beside the result, such as chance.
    """
    settings = {"model": dict(model), "task": task.describe(), "train": config.to_json()}

    def run(around: Surroundings) -> Result:
        outcome = train(
            build,
            task,
            config,
            folder=around.folder,
            identity={"model": dict(model)},
            resume=around.resume,
            deadline=around.deadline,
            watch=around.watch,
        )
        kept = asdict(replace(outcome, scores={})) | dict(more)
        del kept["scores"]
        first = next(iter(outcome.test.values()))
        return Result(
            first.mean_sampled,
            first.standard_error_sampled,
            outcome.ended != "deadline",
            kept,
        )

    return Cell(labels, settings, run)


def measuring_cell(
    labels: Mapping[str, str | int],
    settings: Mapping[str, Any],
    measure: Callable[[], tuple[float, dict[str, Any]]],
) -> Cell:
    """A cell whose result is measured at once, without training."""

    def run(around: Surroundings) -> Result:
        started = time.monotonic()
        value, more = measure()
        return Result(value, None, True, more | {"wall_s": time.monotonic() - started})

    return Cell(labels, settings, run)
