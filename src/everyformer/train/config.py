"""Everything that decides a training run, in one frozen record."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import torch

from everyformer.errors import TrainingError, refuse
from everyformer.layers.models.encoder_config import wrong_types

Precision = Literal["fp32", "tf32", "bf16"]
Decay = Literal["linear", "constant", "cosine", "polynomial", "inverse-sqrt"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained; the same config, model and task give the same losses.

    Attributes:
        steps: Updates of the weights, at most.
        batch: Examples in an update, over all processes and accumulated parts.
        accumulation: Parts that a process computes one after the other in an update.
        lr: The largest learning rate.
        table_lr: Factor on the rate of the tables of encodings and gains.
        warmup: Updates in which the rate grows linearly from 0.
        decay: After the warm-up: "linear" down to 0 at the end, "cosine" or "polynomial"
            (of degree 1) down to `end_lr`, "inverse-sqrt", or "constant".
        end_lr: The rate after the last update, of "cosine" and "polynomial".
        betas: Of AdamW.
        eps: Of AdamW.
        weight_decay: Of AdamW; tables of encodings and gains have none.
        decay_biases: Whether biases and norms have it; BERT's have none.
        clip: Largest norm of the gradient; None does not clip.
        precision: "fp32"; "tf32" for products that round their factors to 10 bits, on a GPU
            that has them; or "bf16" products with weights and sums in float32.
        compile: Whether `torch.compile` compiles the blocks and the head with its loss.
        cudnn: Whether PyTorch's attention prefers cuDNN's kernels on a GPU, where they
            take the layer; else PyTorch chooses.
        record: Whether one GPU replays an update from a CUDA graph instead of launching
            its kernels one by one; with several processes or on a CPU it changes nothing.
        seed: Of weights, data and dropout.
        log_every: Updates between two lines of the log.
        evaluate_every: Updates between two evaluations; 0 evaluates at the end only.
        evaluation_batch: Examples that a process scores at once; how many are scored,
            the task says.
        checkpoint_every: Updates between two checkpoints; 0 writes none.
        stop_at: Accuracy on the validation set at which training ends early.
    """

    steps: int
    batch: int
    lr: float
    accumulation: int = 1
    table_lr: float = 1.0
    warmup: int = 0
    decay: Decay = "linear"
    end_lr: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_biases: bool = True
    clip: float | None = None
    precision: Precision = "fp32"
    compile: bool = False
    cudnn: bool = False
    record: bool = False
    seed: int = 0
    log_every: int = 10
    evaluate_every: int = 0
    evaluation_batch: int = 256
    checkpoint_every: int = 0
    stop_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self) | {"betas": list(self.betas)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "TrainConfig":
        """The config that `to_json` gave.

        Raises:
            TrainingError: If a name is unknown, or betas are not a pair.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(stored) - known):
            msg = (
                f"A training config has no {', '.join(unknown)}. It has "
                f"{', '.join(sorted(known))}."
            )
            raise TrainingError(msg)
        given: dict[str, Any] = {**stored}
        if not isinstance(stored.get("betas", []), list | tuple):
            msg = f"betas={stored['betas']!r} is not a pair of numbers; use [0.9, 0.999]."
            raise TrainingError(msg)
        given["betas"] = tuple(stored.get("betas", cls.betas))
        return cls(**given)


def changed(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """The config with some settings changed.

    Raises:
        TrainingError: If a name is unknown.
    """
    return TrainConfig.from_json({**config.to_json(), **changes})


def check(config: TrainConfig, processes: int, device: torch.device) -> None:
    """Refuse a config that cannot run here; all reasons at once.

    Raises:
        TrainingError: If a number is out of range, the batch cannot be shared out
            evenly, or the device does not know the precision.

    Example:
        >>> check(TrainConfig(steps=1, batch=6, lr=0.1), 4, torch.device("cpu"))
        Traceback (most recent call last):
        ...
        everyformer.errors.TrainingError: This run cannot be trained: batch=6 sequences
        cannot be shared evenly by 4 processes x 1 accumulated parts; use 8.
    """
    wrong = wrong_types(config, _KINDS)
    refuse("This run cannot be trained", wrong, TrainingError)
    wrong = [*_out_of_range(config), *_uneven(config, processes)]
    if config.precision not in get_args(Precision):
        wrong.append(
            f"precision={config.precision!r} is unknown; use one of "
            f"{', '.join(get_args(Precision))}"
        )
    elif config.precision == "bf16" and not _has_bf16(device):
        wrong.append(f"precision='bf16' is not known to {device}; use 'fp32'")
    refuse("This run cannot be trained", wrong, TrainingError)


_KINDS: dict[tuple[type, ...], tuple[str, ...]] = {
    (int,): (
        "steps", "batch", "accumulation", "warmup", "seed", "log_every", "evaluate_every",
        "evaluation_batch", "checkpoint_every",
    ),
    (int, float): ("lr", "end_lr", "table_lr", "eps", "weight_decay"),
    (int, float, type(None)): ("clip", "stop_at"),
    (bool,): ("compile", "cudnn", "record", "decay_biases"),
    (str,): ("decay", "precision"),
}  # fmt: skip


def _out_of_range(config: TrainConfig) -> list[str]:
    wrong = [
        f"{name}={getattr(config, name)} must be at least 1"
        for name in ("steps", "batch", "accumulation", "log_every", "evaluation_batch")
        if getattr(config, name) < 1
    ]
    wrong += [
        f"{name}={getattr(config, name)} must not be negative"
        for name in ("warmup", "evaluate_every", "checkpoint_every", "weight_decay")
        if getattr(config, name) < 0
    ]
    wrong += [
        f"{name}={getattr(config, name)} must be positive and finite"
        for name in ("lr", "table_lr", "eps")
        if not 0 < getattr(config, name) < math.inf
    ]
    if len(config.betas) != 2 or not all(0 <= beta < 1 for beta in config.betas):
        wrong.append(f"betas={config.betas} must be two numbers from 0 to below 1")
    if config.stop_at is not None and not 0 < config.stop_at <= 1:
        wrong.append(f"stop_at={config.stop_at} is not an accuracy that can be reached")
    if config.warmup >= config.steps:
        wrong.append(
            f"warmup={config.warmup} leaves none of {config.steps} steps at the full "
            "rate; make it shorter"
        )
    if config.decay not in get_args(Decay):
        wrong.append(
            f"decay={config.decay!r} is unknown; use one of {', '.join(get_args(Decay))}"
        )
    if not 0 <= config.end_lr <= config.lr:
        wrong.append(f"end_lr={config.end_lr} must lie between 0 and lr={config.lr}")
    elif config.end_lr and config.decay not in ("cosine", "polynomial"):
        wrong.append(
            f"end_lr={config.end_lr} has no meaning for decay={config.decay!r}; use "
            "'cosine' or 'polynomial', or leave it out"
        )
    if config.clip is not None and not config.clip > 0:
        wrong.append(f"clip={config.clip} must be positive; None does not clip")
    if config.stop_at is not None and not config.evaluate_every:
        wrong.append(
            f"stop_at={config.stop_at} never applies without evaluations; set "
            "evaluate_every"
        )
    return wrong


def _uneven(config: TrainConfig, processes: int) -> list[str]:
    """Parts of unequal size would have unequal shapes."""
    parts = processes * max(config.accumulation, 1)
    if not config.batch % parts:
        return []
    return [
        f"batch={config.batch} sequences cannot be shared evenly by {processes} "
        f"processes x {config.accumulation} accumulated parts; use "
        f"{parts * -(-config.batch // parts)}"
    ]


def _has_bf16(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
