"""Tiny runs, in this process."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.train.ragged import Ragged, masked_language

from everyformer.experiments.urpe_synthetic.tasks import Synthetic
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig
from everyformer.train.loop import Outcome, Watch, nobody, train
from everyformer.train.objectives.labels import Labels

TASK = Synthetic("etp", seq_len=8, tokens=10, seed=3, evaluated=16)


def tiny_run(
    folder: Path | None = None,
    *,
    dropout: float = 0.0,
    dim: int = 16,
    resume: bool = False,
    deadline: float | None = None,
    parent: Path | None = None,
    watch: Watch = nobody,
    encoding: str = "t5+urpe",
    **more: Any,
) -> Outcome:
    """A model of 2 blocks on even token prediction."""
    model = EncoderConfig(
        TASK.vocab_size, 8, dim=dim, layers=2, heads=2, ffn=32, encoding=encoding,
        dropout=dropout,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "steps": 30, "batch": 8, "lr": 3e-3, "warmup": 5, "clip": 1.0, "seed": 1,
        "log_every": 1, "evaluate_every": 10, "checkpoint_every": 7,
    }  # fmt: skip
    config = TrainConfig(**(settings | more))
    return train(
        lambda: Labels(Encoder(model)), TASK, config, folder=folder, resume=resume,
        deadline=deadline, parent=parent, watch=watch,
    )  # fmt: skip


def ragged_run(
    folder: Path | None = None,
    *,
    resume: bool = False,
    longer: tuple[int, int] = (4, 10**9),
    **more: Any,
) -> Outcome:
    """Masked tokens and next sentences with unequal weights, in float64."""
    settings: dict[str, Any] = {
        "steps": 8, "batch": 40, "lr": 3e-3, "clip": 1.0, "seed": 1, "log_every": 1,
        "weight_decay": 0.1, "decay_biases": False, "evaluate_every": 4,
        "checkpoint_every": 3, "evaluation_batch": 8,
    }  # fmt: skip
    torch.set_default_dtype(torch.float64)
    try:
        config = TrainConfig(**(settings | more))
        return train(masked_language, Ragged(longer), config, folder=folder, resume=resume)
    finally:
        torch.set_default_dtype(torch.float32)


def losses(lines: list[dict[str, Any]]) -> dict[int, float]:
    """Loss by step."""
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@cache
def plain_losses() -> dict[int, float]:
    """Those of `tiny_run()`, with which other ways to the same are compared."""
    return losses(tiny_run().curve)
