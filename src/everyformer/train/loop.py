"""The training loop: one process, one GPU, or many by torchrun or accelerate launch."""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator

from everyformer.data.task import Scores, Task
from everyformer.errors import TrainingError
from everyformer.layers.learnt_positions import learnt_positions
from everyformer.train import processes
from everyformer.train.arithmetic import arithmetic, continued
from everyformer.train.config import TrainConfig, check
from everyformer.train.evaluation import Score, summaries
from everyformer.train.objective import Objective
from everyformer.train.run_folder import RunFolder
from everyformer.train.schedule import learning_rate
from everyformer.train.trainer import Trainer, summed
from everyformer.train.weights_from import encoder_from, parent_hash, write_encoder

Watch = Callable[[Mapping[str, Any]], None]
Ending = Literal["steps", "accuracy", "deadline"]


def nobody(line: Mapping[str, Any]) -> None:
    """Watches nothing."""


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        steps: Updates done.
        ended: After all "steps", at the "accuracy" of `stop_at`, or at the "deadline".
        test: Means of the scores on the test set, which nothing else looked at.
        validation: The same on the validation set.
        scores: Of the test set, as the task judges them, example by example.
        wall_s: Seconds of this call, all included.
        step_s_sampled: Seconds of an update, without evaluations; the median.
        parameters: Number of weights.
        processes: How many computed it.
        arithmetic: By the updates before: device, threads and torch of those that follow.
        curve: The lines of the log.
        positions: The learnt B and C, as `learnt_positions` names them.
        made: What `at_end` made of the trained objective.
    """

    steps: int
    ended: Ending
    test: dict[str, Score]
    validation: dict[str, Score]
    scores: Scores
    wall_s: float
    step_s_sampled: float
    parameters: int
    processes: int
    arithmetic: dict[str, str]
    curve: list[dict[str, Any]]
    positions: dict[str, np.ndarray]
    made: Scores = field(default_factory=dict[str, np.ndarray])


def train(
    build: Callable[[], Objective],
    task: Task,
    config: TrainConfig,
    *,
    folder: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    resume: bool = False,
    deadline: float | None = None,
    watch: Watch = nobody,
    parent: Path | None = None,
    parent_identity: Mapping[str, Any] | None = None,
    at_end: Callable[[Objective], Scores] | None = None,
) -> Outcome:
    """Train an objective on a task.

    A run with a folder that comes to its end leaves its encoder there, for later runs to
    start from.

    Args:
        build: Makes the objective; called once, after seeding.
        task: The examples.
        config: How.
        folder: Where log and checkpoints go; None writes nothing.
        identity: What else tells this run from others, such as the model's sizes.
        resume: Whether to go on from the checkpoint in `folder`, if there is one.
        deadline: A time of `time.monotonic` after which the next evaluation is the last.
        watch: Called with every line of the log, in the main process.
        parent: Folder of the run whose encoder this one starts from.
        parent_identity: What that run must have been; None takes any.
        at_end: Makes arrays of the objective that was trained to its end, such as texts.

    Raises:
        TrainingError: If the settings cannot work, `folder` holds another run, the parent
            is missing or another one, or the loss is not a number any more.
    """
    started = time.monotonic()
    accelerator = processes.accelerator()
    check(config, accelerator.num_processes, accelerator.device)
    who = {"train": config.to_json(), "task": task.describe(), **(identity or {})}
    if parent is not None:
        who["parent"] = parent_hash(parent)
    place = RunFolder(folder, who, resume=resume, main=accelerator.is_main_process)
    accelerator.wait_for_everyone()

    trainer = Trainer(build, task, config, accelerator)
    if parent is not None:
        encoder_from(parent, trainer.objective, parent_identity)
    stored = place.load(trainer.device)
    if stored is not None:
        trainer.restore(stored)
    ran = continued(stored, arithmetic(accelerator))
    ended: Ending = "accuracy" if stored and stored["ended"] == "accuracy" else "steps"
    place.open_log(trainer.step)

    def tell(line: dict[str, Any]) -> None:
        place.write(line)
        if accelerator.is_main_process:
            watch(line)

    validation: dict[str, Score] | None = None
    clock, since, step_times = time.monotonic(), trainer.step, list[float]()
    with closing(place):  # a log that breaks off is closed, too
        while trainer.step < config.steps and ended == "steps":
            shares, validation = trainer.update(), None
            step = trainer.step
            if step % config.log_every == 0 or step == config.steps:
                means = trainer.global_means(shares)
                step_times.append((time.monotonic() - clock) / (step - since))
                clock, since = time.monotonic(), step
                tell({"step": step, **means, "lr": learning_rate(config, step - 1)})
            if config.evaluate_every and step % config.evaluate_every == 0:
                validation = summaries(trainer.scores("validation"))
                told = {name: score.mean_sampled for name, score in validation.items()}
                tell({"step": step, **told})
                if config.stop_at is not None and _reached(told, config.stop_at):
                    ended = "accuracy"
                elif _is_over(deadline, accelerator):
                    ended = "deadline"
                clock, since = time.monotonic(), step
            if config.checkpoint_every and (step % config.checkpoint_every == 0):
                place.save(trainer.state() | {"ended": ended, "arithmetic": ran})
                clock, since = time.monotonic(), step
        if config.checkpoint_every:
            place.save(trainer.state() | {"ended": ended, "arithmetic": ran})
        if folder is not None and accelerator.is_main_process and ended != "deadline":
            write_encoder(folder, trainer.objective, who)
        accelerator.wait_for_everyone()
        scores = trainer.scores("test")
        made: Scores = {}
        if at_end is not None and ended != "deadline":
            made = trainer.applied(at_end)
    return Outcome(
        steps=trainer.step,
        ended=ended,
        test=summaries(scores),
        validation=validation or summaries(trainer.scores("validation")),
        scores=scores,
        wall_s=time.monotonic() - started,
        step_s_sampled=statistics.median(step_times) if step_times else 0.0,
        parameters=sum(p.numel() for p in trainer.objective.parameters()),
        processes=accelerator.num_processes,
        arithmetic=ran,
        curve=place.lines,
        positions={
            name: table.numpy()
            for name, table in learnt_positions(trainer.objective).items()
        },
        made=made,
    )


def _reached(means: Mapping[str, float], stop_at: float) -> bool:
    """Whether the accuracy is that at which a run ends.

    Raises:
        TrainingError: If no accuracy is measured.
    """
    if "accuracy" not in means:
        msg = (
            f"stop_at={stop_at} is an accuracy, and this task measures "
            f"{', '.join(means)}. Leave stop_at out."
        )
        raise TrainingError(msg)
    return means["accuracy"] >= stop_at


def _is_over(deadline: float | None, accelerator: Accelerator) -> bool:
    """Whether the deadline has passed for any process: they must agree."""
    if deadline is None:
        return False
    over = torch.tensor(float(time.monotonic() > deadline), device=accelerator.device)
    return float(summed(accelerator, over)) > 0
