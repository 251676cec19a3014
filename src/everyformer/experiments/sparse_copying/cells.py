"""`sparse-copying`: which patterns learn to copy, in how many layers.

Patterns, ways to use them, and 1 to 4 layers, as Yun et al. 2020 (sparse) compare them. The
model is ours: an encoder with sparse attention; its learnable positions start as sinusoids.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.experiments.cell import Cell, Size, training_cell
from everyformer.experiments.sparse_copying.ceiling import ceiling, sparsity
from everyformer.experiments.sparse_copying.task import Copying
from everyformer.layers.encodings.encoding import TABLE_STD
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.layers.sparse_attention import Configuration, SparseAttention
from everyformer.patterns import Pattern, cycle, fixed, random, star, strided
from everyformer.train.config import TrainConfig, changed
from everyformer.train.objectives.labels import Labels

RECALLED: dict[tuple[str, Configuration], tuple[float, float, float, float]] = {
    ("strided", "union"): (0.82, 100.0, 100.0, 100.0),
    ("strided", "multihead"): (0.82, 100.0, 100.0, 100.0),
    ("strided", "sequential"): (0.80, 81.24, 100.0, 100.0),
    ("fixed", "union"): (7.04, 69.26, 99.98, 100.0),
    ("fixed", "multihead"): (0.76, 56.45, 99.08, 99.64),
    ("fixed", "sequential"): (0.80, 96.01, 98.58, 100.0),
    ("star", "sequential"): (1.53, 29.70, 42.18, 83.57),
    ("random", "sequential"): (33.14, 63.41, 70.29, 95.49),
}
"""The rows, and per cent after 1 to 4 layers at n = 256, from memory: no target."""


@dataclass(frozen=True)
class Scale:
    """The sizes of all cells, and how they are trained.

    Attributes:
        seq_len: n.
        width: w of strided, fixed and star.
        odd_width: A width that does not divide n/2, for strided.
        keys: Keys of a token in the random pattern, besides its own.
        symbols: Number of symbols.
        layers: Depths.
        encoder: The other sizes.
        train: How a cell is trained.
        evaluated: Sequences of an evaluation.
        more_steps: Further updates for each layer after the first.
        harder: Settings of training for a pattern at a depth that needs more.
    """

    seq_len: int
    width: int
    odd_width: int
    keys: int
    symbols: int
    layers: tuple[int, ...]
    encoder: EncoderConfig
    train: TrainConfig
    evaluated: int
    more_steps: int = 0
    harder: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)


SCALES: dict[Size, Scale] = {
    "smoke": Scale(
        16, 4, 3, 2, 8, (1, 2),
        EncoderConfig(2, 2, dim=16, layers=1, heads=4, ffn=32, norm="pre"),
        TrainConfig(
            steps=10, batch=16, lr=1e-3, warmup=2, clip=1.0, evaluate_every=5,
            checkpoint_every=10,
        ),
        evaluated=32,
    ),
    "small": Scale(
        64, 8, 7, 6, 16, (1, 2, 3, 4),
        EncoderConfig(2, 2, dim=64, layers=1, heads=4, ffn=128, norm="pre"),
        TrainConfig(
            steps=1000, batch=32, lr=1e-3, warmup=50, clip=1.0, evaluate_every=100,
            checkpoint_every=500, stop_at=0.9995,
        ),
        evaluated=512,
    ),
    "paper": Scale(
        256, 16, 15, 25, 128, (1, 2, 3, 4),
        EncoderConfig(2, 2, dim=256, layers=1, heads=4, ffn=512, norm="pre"),
        TrainConfig(
            steps=2000, batch=32, lr=1e-3, warmup=100, clip=1.0, precision="bf16",
            record=True, log_every=50, evaluate_every=250, checkpoint_every=1000,
            stop_at=0.9995,
        ),
        evaluated=2048,
        more_steps=1000,
        harder={("fixed", 4): {"batch": 128, "steps": 8000}},
    ),
}  # fmt: skip


def cells(size: Size, seeds: Sequence[int], changes: Mapping[str, Any]) -> list[Cell]:
    """All patterns and ways to use them, at every depth, the shallow ones first."""
    scale = SCALES[size]
    odd = f"strided, w = {scale.odd_width}"
    shallow: list[tuple[str, Configuration]] = [(odd, "union"), (odd, "multihead")]
    return [
        cell(size, pattern, way, layers, seed, changes)
        for seed in seeds
        for layers in scale.layers
        for pattern, way in [*RECALLED, *(shallow if layers == 1 else [])]
    ]


def cell(
    size: Size,
    name: str,
    configuration: Configuration,
    layers: int,
    seed: int,
    changes: Mapping[str, Any],
) -> Cell:
    """The complete config of one run.

    A pattern that cannot do better than chance is trained for a quarter of the updates.
    """
    scale = SCALES[size]
    task = Copying(scale.seq_len, scale.symbols, seed, evaluated=scale.evaluated)
    pattern = _pattern(name, scale)
    model = replace(
        scale.encoder,
        vocab_size=task.vocab_size,
        max_len=task.seq_len,
        layers=layers,
        head="untied",
        labels=task.symbols,
    )
    best, chance = ceiling(task, pattern, configuration, layers), 1 / task.symbols
    steps = scale.train.steps + (layers - 1) * scale.more_steps
    steps = steps if best > chance else -(-steps // 4)
    harder = scale.harder.get((name, layers), {})
    train = changed(replace(scale.train, steps=steps, seed=seed), {**harder, **changes})
    more = {
        "chance": chance,
        "ceiling": best,
        "sparsity": sparsity(pattern, configuration),
    }
    if size == "paper" and (name, configuration) in RECALLED:
        more["recalled"] = RECALLED[name, configuration][layers - 1] / 100
    described = {
        **model.to_json(),
        "pattern": name,
        "width": scale.width,
        "configuration": configuration,
    }
    return training_cell(
        {"pattern": name, "configuration": configuration, "layers": layers, "seed": seed},
        lambda: Labels(sparse_encoder(model, pattern, configuration)),
        described,
        task,
        train,
        more,
    )


def sparse_encoder(
    config: EncoderConfig, pattern: Pattern, configuration: Configuration
) -> Encoder:
    """An encoder with sparse attention; its positions start as sinusoids.

    An offset is a rotation of sinusoids, so that one matrix finds the source of every
    target; from random positions each pair would have to be learnt by itself.
    """
    mixers = [
        SparseAttention(
            config.dim, config.heads, pattern, configuration=configuration,
            layer_index=layer,
        )
        for layer in range(config.layers)
    ]  # fmt: skip
    encoder = Encoder(config, mixers=mixers)
    if encoder.positions is not None:
        with torch.no_grad():
            waves = sinusoids(config.max_len, config.dim)
            encoder.positions.copy_(TABLE_STD * math.sqrt(2) * waves)
    return encoder


def sinusoids(n: int, d: int) -> Float[Tensor, "{n} {d}"]:
    """sin and cos of the position at d/2 frequencies from 1 to 1/10,000, side by side."""
    frequencies = torch.exp(-math.log(10_000) * torch.arange(0, d, 2) / d)
    angles = torch.arange(n)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :d]


def _pattern(name: str, scale: Scale) -> Pattern:
    n = scale.seq_len
    made: dict[str, Callable[[], Pattern]] = {
        "strided": lambda: strided(n, scale.width),
        "fixed": lambda: fixed(n, scale.width),
        "star": lambda: star(n, scale.width),
        # Another draw in each of four layers, as each head or layer of a network has.
        "random": lambda: cycle(*(random(n, scale.keys, seed) for seed in range(4))),
    }
    return made[name]() if name in made else strided(n, scale.odd_width)
