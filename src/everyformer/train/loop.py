"""The training loop: one process, one GPU, or many by torchrun or accelerate launch."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from torch import nn

from everyformer.train import processes
from everyformer.train.config import TrainConfig, check
from everyformer.train.run_folder import RunFolder
from everyformer.train.schedule import learning_rate
from everyformer.train.task import Task
from everyformer.train.trainer import Accuracy, Trainer, summed

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
        test: Accuracy on the test set, which nothing else looked at.
        wall_s: Seconds of this call, all included.
        step_s_sampled: Seconds of an update, without evaluations; the median.
        parameters: Number of weights.
        processes: How many computed it.
        curve: The lines of the log.
    """

    steps: int
    ended: Ending
    test: Accuracy
    wall_s: float
    step_s_sampled: float
    parameters: int
    processes: int
    curve: list[dict[str, Any]]


def train(
    build: Callable[[], nn.Module],
    task: Task,
    config: TrainConfig,
    *,
    folder: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    resume: bool = False,
    deadline: float | None = None,
    watch: Watch = nobody,
) -> Outcome:
    """Train a model on a task.

    Args:
        build: Makes the model, tokens (b, n) to logits (b, n, labels); called once, after
            seeding.
        task: The sequences and their labels.
        config: How.
        folder: Where log and checkpoints go; None writes nothing.
        identity: What else tells this run from others, such as the model's sizes.
        resume: Whether to go on from the checkpoint in `folder`, if there is one.
        deadline: A time of `time.monotonic` after which the next evaluation is the last.
        watch: Called with every line of the log, in the main process.

    Raises:
        TrainingError: If the settings cannot work, `folder` holds another run, or the
            loss is no number any more.
    """
    started = time.monotonic()
    accelerator = processes.accelerator()
    check(config, accelerator.num_processes, accelerator.device)
    who = {"train": config.to_json(), "task": task.describe(), **(identity or {})}
    place = RunFolder(folder, who, resume=resume, main=accelerator.is_main_process)
    accelerator.wait_for_everyone()

    trainer = Trainer(build, task, config, accelerator)
    stored = place.load(trainer.device)
    if stored is not None:
        trainer.restore(stored)
    ended: Ending = "accuracy" if stored and stored["ended"] == "accuracy" else "steps"
    place.open_log(trainer.step)

    def tell(line: dict[str, Any]) -> None:
        place.write(line)
        if accelerator.is_main_process:
            watch(line)

    clock, since, step_times = time.monotonic(), trainer.step, list[float]()
    while trainer.step < config.steps and ended == "steps":
        loss = trainer.update()
        step = trainer.step
        if step % config.log_every == 0 or step == config.steps:
            mean = trainer.global_loss(loss)
            step_times.append((time.monotonic() - clock) / (step - since))
            clock, since = time.monotonic(), step
            tell({"step": step, "loss": mean, "lr": learning_rate(config, step - 1)})
        if config.evaluate_every and step % config.evaluate_every == 0:
            reached = trainer.accuracy("validation").mean_sampled
            tell({"step": step, "accuracy": reached})
            if config.stop_at is not None and reached >= config.stop_at:
                ended = "accuracy"
            elif _is_over(deadline, accelerator):
                ended = "deadline"
            clock, since = time.monotonic(), step
        if config.checkpoint_every and (step % config.checkpoint_every == 0):
            place.save(trainer.state() | {"ended": ended})
            clock, since = time.monotonic(), step
    if config.checkpoint_every:
        place.save(trainer.state() | {"ended": ended})
    test = trainer.accuracy("test")
    place.close()
    return Outcome(
        steps=trainer.step,
        ended=ended,
        test=test,
        wall_s=time.monotonic() - started,
        step_s_sampled=statistics.median(step_times) if step_times else 0.0,
        parameters=sum(p.numel() for p in trainer.objective.parameters()),
        processes=accelerator.num_processes,
        curve=place.lines,
    )


def _is_over(deadline: float | None, accelerator: Accelerator) -> bool:
    """Whether the deadline has passed for any process: they must agree."""
    if deadline is None:
        return False
    over = torch.tensor(float(time.monotonic() > deadline), device=accelerator.device)
    return float(summed(accelerator, over)) > 0
