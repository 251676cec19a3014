"""One entry of a table: what is run for it, and what comes out."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from everyformer.data.task import Task
from everyformer.errors import TrainingError
from everyformer.experiments.arrays import name_of
from everyformer.experiments.scores import CLUSTERS
from everyformer.train.config import TrainConfig
from everyformer.train.loop import Outcome, Watch, nobody, train
from everyformer.train.objective import Objective

Size = Literal["smoke", "small", "reduced", "paper"]
"""Seconds in CI, minutes on a laptop, an hour on one GPU, and the sizes of the paper."""

SIZES: tuple[Size, ...] = ("smoke", "small", "reduced", "paper")

Labels = Mapping[str, str | int]
Scale = TypeVar("Scale")
Plan = Callable[[Size, Sequence[int]], Iterable[tuple[str | int, ...]]]
Order = Callable[[Size, Sequence[int]], list[Labels]]


@dataclass(frozen=True)
class Surroundings:
    """Where a cell may write, until when it may run, and where its parent lies."""

    folder: Path | None = None
    resume: bool = False
    deadline: float | None = None
    watch: Watch = nobody
    parent: Path | None = None


@dataclass(frozen=True)
class Result:
    """What a cell gave.

    Attributes:
        value_sampled: The number of the table.
        standard_error_sampled: Of that number; None where it has none.
        complete: False where a deadline ended the run.
        more: All else that is worth keeping, as JSON holds it.
        scores: By metric, a number for each test example; `CLUSTERS` beside them.
        positions: The learnt B and C, as `learnt_positions` names them.
    """

    value_sampled: float
    standard_error_sampled: float | None
    complete: bool
    more: dict[str, Any]
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    positions: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """An entry of a table.

    Attributes:
        labels: Row and column, in the order in which they are shown.
        settings: Everything that decides the result, as JSON holds it.
        run: Makes the result.
        parent: The cell whose weights this one begins with.
        operations: Floating-point operations of the run, about; 0 if not counted.
    """

    labels: Labels
    settings: Mapping[str, Any]
    run: Callable[[Surroundings], Result]
    parent: "Cell | None" = None
    operations: float = 0.0

    @property
    def name(self) -> str:
        """What `--only` is compared with."""
        return name_of(self.labels)

    @property
    def identity(self) -> str:
        """A hash of the settings, and so of those of all parents."""
        return _hash(self.settings)


def of_size(scales: Mapping[Size, Scale], size: Size, experiment: str, why: str) -> Scale:
    """What a size decides.

    Raises:
        TrainingError: If the experiment has no such size, and why.
    """
    if size not in scales:
        *others, last = scales
        msg = (
            f"{experiment} has no {size} size: {why}. Choose {', '.join(others)} or {last}."
        )
        raise TrainingError(msg)
    return scales[size]


def labelled(
    *names: str,
) -> Callable[[Plan], Order]:
    """Let a plan, which gives the labels of each cell as a tuple, give them by name."""

    def of_plan(plan: Plan) -> Order:
        @wraps(plan)
        def order(size: Size, seeds: Sequence[int]) -> list[Labels]:
            return [dict(zip(names, one, strict=True)) for one in plan(size, seeds)]

        return order

    return of_plan


def conditions_hash(settings: Mapping[str, Any]) -> str:
    """A hash of all settings that the arms and seeds of a comparison must share.

    Seeds and mixers are what may differ; of a parent, its own conditions count.
    """
    kept: dict[str, Any] = {}
    for part, given in settings.items():
        if part == "parent":
            kept[part] = given["conditions"]
        elif isinstance(given, Mapping):
            kept[part] = {n: v for n, v in given.items() if n not in ("seed", "mixers")}
        else:
            kept[part] = given
    return _hash(kept)


def _hash(settings: Mapping[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def training_cell(
    labels: Labels,
    build: Callable[[], Objective],
    model: Mapping[str, Any],
    task: Task,
    config: TrainConfig,
    more: Mapping[str, Any],
    *,
    metric: str = "accuracy",
    parent: Cell | None = None,
    clusters: Callable[[], np.ndarray] | None = None,
    operations: float = 0.0,
    derived: Callable[[Outcome], Mapping[str, Any]] | None = None,
    shown: Callable[[Outcome], tuple[float, float]] | None = None,
    at_end: Callable[[Objective], dict[str, np.ndarray]] | None = None,
) -> Cell:
    """A cell whose result is a number of a trained model on the test set.

    Args:
        labels: Row and column.
        build: Makes the model with its loss.
        model: What it is, as JSON holds it.
        task: What is learnt.
        config: How.
        more: Numbers to keep beside the result, such as chance.
        metric: Which of the scores of the task is the result.
        parent: The cell whose encoder this one begins with.
        clusters: Which test examples belong together; without it no scores are kept.
        operations: Floating-point operations of the run, about.
        derived: Further numbers to keep, from what the run gave.
        shown: The result and its standard error; by default those of the metric.
        at_end: Makes arrays of the trained objective, kept with the scores of examples.
    """
    made = {"model": dict(model), "task": task.describe(), "train": config.to_json()}
    parents = {} if parent is None else {"parent": _named(parent)}

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
            parent=around.parent,
            parent_identity=None if parent is None else parent.settings,
            at_end=at_end,
        )
        kept = asdict(replace(outcome, scores={}, positions={}, made={})) | dict(more)
        del kept["scores"], kept["positions"], kept["made"]
        kept |= {} if derived is None else derived(outcome)
        score = outcome.test[metric]
        told = (score.mean_sampled, score.standard_error_sampled)
        return Result(
            *(told if shown is None else shown(outcome)),
            outcome.ended != "deadline",
            kept,
            {}
            if clusters is None
            else {**outcome.scores, **outcome.made, CLUSTERS: clusters()},
            outcome.positions,
        )

    return Cell(labels, made | parents, run, parent, operations)


def _named(parent: Cell) -> dict[str, str]:
    """What the settings of a cell say of its parent."""
    return {
        "name": parent.name,
        "sha256": parent.identity,
        "conditions": conditions_hash(parent.settings),
    }


def measuring_cell(
    labels: Labels,
    settings: Mapping[str, Any],
    measure: Callable[[], Result],
) -> Cell:
    """A cell whose result is measured at once, without training."""

    def run(around: Surroundings) -> Result:
        started = time.monotonic()
        found = measure()
        return replace(found, more=found.more | {"wall_s": time.monotonic() - started})

    return Cell(labels, settings, run)
