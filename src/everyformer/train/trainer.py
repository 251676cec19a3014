"""An objective in training: its updates, its scores, its state.

An update is a function of (seed, step): the task draws its examples by their numbers,
whoever computes which of them, and dropout is seeded anew. So a resumed run repeats the
losses of one that was not stopped.
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, cast

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from everyformer.data.batch import Batch, Draw
from everyformer.data.randomness import Split, mixed_key
from everyformer.data.task import Scores, Task
from everyformer.errors import TrainingError
from everyformer.layers.decay import parameter_groups
from everyformer.train.compiled import compile_parts, many_variants
from everyformer.train.config import TrainConfig
from everyformer.train.evaluation import scores_of
from everyformer.train.objective import Objective
from everyformer.train.recorded import Recorded
from everyformer.train.schedule import learning_rate

WEIGHTS, DROPOUT = 0, 1
"""What a seed is for."""

CUDNN_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class Trainer:
    """An objective, its optimiser, and the number of updates done."""

    def __init__(
        self,
        build: Callable[[], Objective],
        task: Task,
        config: TrainConfig,
        accelerator: Accelerator,
    ) -> None:
        """A fresh model; its weights are a function of the seed."""
        self.task, self.config, self.accelerator = task, config, accelerator
        self.device: torch.device = accelerator.device
        self.step = 0
        torch.manual_seed(mixed_key(config.seed, WEIGHTS))
        self.objective = build().to(self.device)
        if self.objective.in_order and accelerator.num_processes > 1:
            self._refuse_checkpoints()
        if config.compile:
            compile_parts(self.objective, cudnn=config.cudnn)
        groups = parameter_groups(
            self.objective, config.weight_decay, decay_biases=config.decay_biases
        )
        self.optimiser = torch.optim.AdamW(
            groups,
            lr=config.lr, betas=config.betas, eps=config.eps,
            fused=self.device.type == "cuda", capturable=self.recorded,
        )  # fmt: skip
        self._wrapped = accelerator.prepare_model(self.objective)
        self._broken = torch.zeros(2, dtype=torch.int64, device=self.device)
        # In float32, whatever the default: the fused optimiser reads no other.
        self._rates = [torch.zeros((), device=self.device).float() for _ in groups]
        self._updated = Recorded(self._update) if self.recorded else self._update
        self._evaluated: dict[Split, Recorded[Tensor]] = {}

    @property
    def recorded(self) -> bool:
        """Whether updates are replayed from CUDA graphs."""
        alone = self.accelerator.num_processes == 1
        return self.config.record and alone and self.device.type == "cuda"

    def update(self) -> Float[Tensor, " terms"]:
        """One update of the weights; this process's share of the mean of each term."""
        config, rank = self.config, self.accelerator.process_index
        torch.manual_seed(mixed_key(config.seed, DROPOUT, self.step, rank))
        rate = learning_rate(config, self.step)
        self._set_rates(rate)
        parts = config.accumulation * self.accelerator.num_processes
        first = rank * config.accumulation
        draws = [
            self.task.draw(self.step, config.batch, part, parts, self.device)
            for part in range(first, first + config.accumulation)
        ]
        with rounded_products(self.config.precision == "tf32"):
            means = self._updated(draws)
        self.step += 1
        return means

    def _set_rates(self, rate: float) -> None:
        """Of weights, tables and biases; a graph reads them where it has found them."""
        rates = [rate, rate * self.config.table_lr, rate]
        for group, place, own in zip(
            self.optimiser.param_groups, self._rates, rates, strict=False
        ):
            group["lr"] = place.fill_(own) if self.recorded else own

    def _update(self, draws: Sequence[Draw]) -> Float[Tensor, " terms"]:
        """The update by these training examples, at the rates that are set."""
        config, accelerator = self.config, self.accelerator
        batches = [self.task.batch("train", draw) for draw in draws]
        totals = self._total_weights(batches)
        self.optimiser.zero_grad(set_to_none=True)
        means = torch.zeros_like(totals)
        for place, batch in enumerate(batches):
            last = place == len(batches) - 1
            waits = nullcontext() if last else accelerator.no_sync(self._wrapped)
            with waits:
                with self.kernels():
                    shares = self._wrapped(batch) / totals
                # The wrapper takes the mean of the processes' gradients; theirs add up.
                accelerator.backward(shares.sum() * accelerator.num_processes)
            means += shares.detach()
        if config.clip is not None:
            parameters = self.objective.parameters()
            norm = cast("Tensor", accelerator.clip_grad_norm_(parameters, config.clip))
            # How many updates in a row have no finite loss, and no finite gradient.
            found = torch.stack([means.sum().float(), norm.float()]).isfinite()
            self._broken.add_(1).mul_(~found)
        self.optimiser.step()
        return means

    def _total_weights(self, batches: Sequence[Batch]) -> Float[Tensor, " terms"]:
        """Of every term, over all parts and processes; 1 for a term without any."""
        own = torch.stack([self.objective.weights(batch) for batch in batches]).sum(0)
        total = summed(self.accelerator, own)
        return torch.where(total > 0, total, torch.ones_like(total))

    def global_means(self, shares: Float[Tensor, " terms"]) -> dict[str, float]:
        """The loss of an update over all processes and its terms; waits for the device.

        Raises:
            TrainingError: If the loss is not a finite number.
        """
        means = [float(mean) for mean in summed(self.accelerator, shares)]
        loss = sum(means)
        if not math.isfinite(loss):
            msg = (
                f"The loss is {loss} after {self.step:,} updates, so nothing is learnt any "
                f"more.{self._broken_since()} Use a rate below lr={self.config.lr}, a "
                "longer warm-up, or clip."
            )
            raise TrainingError(msg)
        terms = self.objective.terms
        named = dict(zip(terms, means, strict=True)) if len(terms) > 1 else {}
        return {"loss": loss, **named}

    def _broken_since(self) -> str:
        """Which update was the first without a finite gradient; "" if none is clipped."""
        losses, gradients = self._broken.tolist()
        if not gradients:
            return ""
        first = self.step - gradients + 1
        told = f" Update {first:,} was the first whose gradient was not finite"
        if gradients > losses and self.accelerator.num_processes == 1:
            return (
                f"{told}, though its loss was: torch.autograd.set_detect_anomaly(True) "
                "names the operation."
            )
        return f"{told}."

    def scores(self, split: Split) -> Scores:
        """The scores of all examples of a split, judged by the task; in all processes."""
        self.objective.eval()
        rounded = rounded_products(self.config.precision == "tf32")
        recorded = self._recorded_scores(split)
        # A graph chooses its own kernels: autocast keeps rounded weights until it is left,
        # and a graph that was recorded within it would read them when they are gone.
        kernels = self.kernels() if recorded is None else nullcontext()
        with rounded, self._not_compiled(), kernels:
            found = scores_of(
                self.task,
                split,
                self.objective.scores,
                self.accelerator,
                self.config.evaluation_batch,
                recorded,
            )
        self.objective.train()
        return found

    def applied(self, function: Callable[[Objective], Scores]) -> Scores:
        """What a function makes of the objective, in evaluation mode and precision."""
        self.objective.eval()
        rounded = rounded_products(self.config.precision == "tf32")
        with torch.no_grad(), rounded, self._not_compiled(), self.kernels():
            found = function(self.objective)
        self.objective.train()
        return found

    def _recorded_scores(self, split: Split) -> Callable[[Draw], dict[str, Tensor]] | None:
        """Thousands of short segments, one after the other, are replayed as graphs."""
        if not (self.recorded and self.objective.in_order):
            return None

        def losses(draws: Sequence[Draw]) -> Tensor:
            with self.kernels():
                return self.objective.scores(self.task.batch(split, draws[0]))["losses"]

        if split not in self._evaluated:
            self._evaluated[split] = Recorded(losses)
        replayed = self._evaluated[split]
        return lambda draw: {"losses": replayed([draw])}

    def _refuse_checkpoints(self) -> None:
        """A checkpoint has the memory of the streams of one process.

        Raises:
            TrainingError: If checkpoints are asked for.
        """
        if self.config.checkpoint_every:
            msg = (
                f"checkpoint_every={self.config.checkpoint_every}: the memory of streams "
                f"that {self.accelerator.num_processes} processes read lies in none of "
                "them whole, so a checkpoint could not be resumed. Train in one process, "
                "or without checkpoints."
            )
            raise TrainingError(msg)

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

    def kernels(self) -> AbstractContextManager[Any]:
        """The precision and the kernels of a forward pass."""
        chosen = ExitStack()
        if self.config.precision == "bf16":
            chosen.enter_context(torch.autocast(self.device.type, torch.bfloat16))
        if self.config.cudnn and self.device.type == "cuda":
            chosen.enter_context(sdpa_kernel(CUDNN_FIRST, set_priority=True))
        if self.config.compile:
            chosen.enter_context(many_variants())
        return chosen


@contextmanager
def rounded_products(rounded: bool) -> Generator[None, None, None]:
    """Products of float32 on tensor cores, which round their factors to 10 bits."""
    before = torch.get_float32_matmul_precision()
    if rounded and torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def summed(accelerator: Accelerator, x: Tensor) -> Tensor:
    """The sum over all processes."""
    if accelerator.num_processes == 1:
        return x
    return cast("Tensor", accelerator.reduce(x, "sum"))
