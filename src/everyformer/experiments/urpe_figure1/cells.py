"""`urpe-figure1`: Figure 1 of Luo et al. 2022 under equal conditions.

All arms have the same number of updates, and none ends early. Every cell is run at two
rates of the tables B and C, that of all weights and twenty times that: on random tokens no
theorem keeps T5 from even token prediction, and a fast table lets it learn much of it. The
size `paper` has the paper's schedule: 40,000 updates of 128 sequences at 7e-5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from everyformer.experiments.cell import Cell, Size, training_cell
from everyformer.experiments.urpe_synthetic.cells import MAIN, TASKS, Scale, model_of
from everyformer.experiments.urpe_synthetic.tasks import Synthetic
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig, changed
from everyformer.train.objectives.labels import Labels

RATES = {"1x": 1.0, "20x": 20.0}
"""Of the tables, as a multiple of the rate of the other weights."""


SCALES: dict[Size, Scale] = {
    "smoke": Scale(
        encoder=EncoderConfig(2, 2, dim=16, layers=1, heads=2, ffn=32),
        seq_len=8,
        tokens=(10,),
        train=TrainConfig(steps=4, batch=8, lr=3e-3, warmup=1, evaluate_every=4),
        evaluated=16,
    ),
    "small": Scale(
        encoder=EncoderConfig(2, 2, dim=32, layers=3, heads=4, ffn=128),
        seq_len=8,
        tokens=(10,),
        train=TrainConfig(
            steps=1500, batch=64, lr=1e-3, warmup=100, clip=1.0, log_every=100,
            evaluate_every=300, checkpoint_every=500,
        ),
        evaluated=512,
    ),
    "reduced": Scale(
        encoder=EncoderConfig(2, 2, dim=64, layers=3, heads=4, ffn=256),
        seq_len=16,
        tokens=(10,),
        train=TrainConfig(
            steps=3000, batch=128, lr=1e-3, warmup=100, clip=1.0, record=True,
            log_every=100, evaluate_every=500,
        ),
        evaluated=2048,
    ),
    "paper": Scale(
        encoder=EncoderConfig(2, 2, dim=768, layers=3, heads=12, ffn=3072),
        seq_len=128,
        tokens=(10, 1000, 10000),
        train=TrainConfig(
            steps=40_000, batch=128, lr=7e-5, warmup=6000, precision="bf16", record=True,
            log_every=100, evaluate_every=1000, checkpoint_every=5000,
        ),
        evaluated=3200,
        multiple=8,
    ),
}  # fmt: skip


def cells(size: Size, seeds: Sequence[int], changes: Mapping[str, Any]) -> list[Cell]:
    """Every arm at both rates, seed by seed; even token prediction first."""
    return [
        cell(size, task, method, tokens, rate, seed, changes)
        for seed in seeds
        for task in reversed(TASKS)
        for rate in RATES
        for method in MAIN
        for tokens in SCALES[size].tokens
    ]


def cell(
    size: Size,
    kind: Literal["pi", "etp"],
    method: str,
    tokens: int,
    rate: str,
    seed: int,
    changes: Mapping[str, Any],
) -> Cell:
    """The complete config of one run."""
    scale = SCALES[size]
    task = Synthetic(kind, scale.seq_len, tokens, seed, evaluated=scale.evaluated)
    model = model_of(scale.encoder, task, method, scale.multiple)
    train = changed(replace(scale.train, table_lr=RATES[rate], seed=seed), changes)
    described = {**model.to_json(), "encoding": "by arm", "mixers": method}
    return training_cell(
        {"task": kind, "method": method, "tokens": tokens, "rate": rate, "seed": seed},
        lambda: Labels(Encoder(model)),
        described,
        task,
        train,
        {"chance": task.chance},
        clusters=lambda: np.arange(scale.evaluated),
    )
