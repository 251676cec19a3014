"""A model in training: its updates, its accuracy, its state.

An update is a function of (seed, step): its sequences are those with the numbers
step * batch .. (step + 1) * batch - 1 of the training set, whoever computes which of them,
and dropout is seeded anew. So a resumed run repeats the losses of one that was not stopped.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from accelerate import Accelerator
from jaxtyping import Int
from torch import Tensor, nn

from everyformer.data.randomness import Split, mixed_key
from everyformer.errors import TrainingError
from everyformer.layers.decay import parameter_groups
from everyformer.train.config import TrainConfig
from everyformer.train.objective import Objective
from everyformer.train.recorded import Recorded
from everyformer.train.schedule import learning_rate
from everyformer.train.task import Task, share

WEIGHTS, DROPOUT = 0, 1
"""What a seed is for."""

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Accuracy:
    """The share of right labels on some sequences, with its standard error.

    The error is that of the mean of the sequences' own shares: labels within a sequence
    are not independent.
    """

    mean_sampled: float
    standard_error_sampled: float
    sequences: int


class Trainer:
    """A model, its optimiser, and the number of updates done."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        task: Task,
        config: TrainConfig,
        accelerator: Accelerator,
    ) -> None:
        """A fresh model; its weights are a function of the seed."""
        self.task, self.config, self.accelerator = task, config, accelerator
        self.device: torch.device = accelerator.device
        self.step = 0
        torch.manual_seed(mixed_key(config.seed, WEIGHTS))
        self.objective = Objective(build(), task.scored).to(self.device)
        if config.compile:
            compile_blocks(self.objective.model)
        self.optimiser = torch.optim.AdamW(
            parameter_groups(self.objective, config.weight_decay),
            lr=config.lr, betas=config.betas, eps=config.eps,
            fused=self.device.type == "cuda", capturable=self.recorded,
        )  # fmt: skip
        self._wrapped = accelerator.prepare_model(self.objective)
        self._rates = [torch.tensor(0.0, device=self.device) for _ in range(2)]
        self._updated = Recorded(self._update) if self.recorded else self._update

    @property
    def recorded(self) -> bool:
        """Whether updates are replayed from a CUDA graph."""
        alone = self.accelerator.num_processes == 1
        return self.config.record and alone and self.device.type == "cuda"

    def update(self) -> Tensor:
        """One update of the weights; returns the loss of this process's sequences."""
        config, rank = self.config, self.accelerator.process_index
        torch.manual_seed(mixed_key(config.seed, DROPOUT, self.step, rank))
        rate = learning_rate(config, self.step)
        self._set_rates(rate, rate * config.table_lr)
        numbers = share(
            config.batch, self.step, rank, self.accelerator.num_processes, self.device
        )
        loss = self._updated(numbers)
        self.step += 1
        return loss

    def _set_rates(self, *rates: float) -> None:
        """Of weights and of tables; a graph reads them where it has found them."""
        for group, place, rate in zip(
            self.optimiser.param_groups, self._rates, rates, strict=True
        ):
            group["lr"] = place.fill_(rate) if self.recorded else rate

    def _update(self, numbers: Int[Tensor, " b"]) -> Tensor:
        """The update by these sequences of the training set, at the rates that are set."""
        config, accelerator = self.config, self.accelerator
        parts = numbers.chunk(config.accumulation)
        self.optimiser.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for part in parts:
            last = part is parts[-1]
            waits = nullcontext() if last else accelerator.no_sync(self._wrapped)
            with waits:
                with self._autocast():
                    loss = self._wrapped(*self.task.sample("train", part)) / len(parts)
                accelerator.backward(loss)
            total += loss.detach()
        if config.clip is not None:
            accelerator.clip_grad_norm_(self.objective.parameters(), config.clip)
        self.optimiser.step()
        return total

    def global_loss(self, loss: Tensor) -> float:
        """The mean over all processes; waits for the device.

        Raises:
            TrainingError: If it is no finite number.
        """
        mean = float(summed(self.accelerator, loss)) / self.accelerator.num_processes
        if not math.isfinite(mean):
            msg = (
                f"The loss is {mean} after {self.step} updates, so nothing is learnt any "
                f"more. Use a rate below lr={self.config.lr}, a longer warm-up, or clip."
            )
            raise TrainingError(msg)
        return mean

    def accuracy(self, split: Split) -> Accuracy:
        """Accuracy on the first sequences of a split, shared out over the processes."""
        sequences, accelerator = self.config.evaluate_sequences, self.accelerator
        own = sequences // accelerator.num_processes
        first = accelerator.process_index * own
        right: list[Tensor] = []
        self.objective.eval()
        with self._autocast(), self._not_compiled():
            for start in range(first, first + own, EVALUATION_BATCH):
                stop = min(start + EVALUATION_BATCH, first + own)
                numbers = torch.arange(start, stop, device=self.device)
                right.append(self.objective.right(*self.task.sample(split, numbers)))
        self.objective.train()
        gathered = cast("Tensor", accelerator.gather(torch.cat(right)))
        shares = gathered.double() / self.task.scored
        error = float(shares.std()) / math.sqrt(sequences)
        return Accuracy(float(shares.mean()), error, sequences)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "model": self.objective.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.objective.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step = state["step"]

    def _not_compiled(self) -> AbstractContextManager[Any]:
        """For evaluation: to compile once more would cost more than it saves."""
        if not self.config.compile:
            return nullcontext()
        return torch.compiler.set_stance("force_eager")

    def _autocast(self) -> AbstractContextManager[Any]:
        half = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext()


def summed(accelerator: Accelerator, x: Tensor) -> Tensor:
    """The sum over all processes."""
    return cast("Tensor", accelerator.reduce(x, "sum"))


def compile_blocks(model: nn.Module, backend: str = "inductor") -> None:
    """Compile each of `model.blocks` in place, so that equal blocks are compiled once.

    Raises:
        TrainingError: If the model has no blocks.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        msg = (
            f"{type(model).__name__} has no ModuleList named blocks, so there is nothing "
            "to compile one by one. Set compile=False, or name its blocks so."
        )
        raise TrainingError(msg)
    torch.compiler.reset()  # what earlier models left counts against a limit
    for block in blocks:
        block.compile(backend=backend)
