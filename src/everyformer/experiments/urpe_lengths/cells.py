"""`urpe-lengths`: trained at one length, tested at that and at two, four, eight times it.

Luo et al. 2022 (slides): "APE-based Transformer usually generalizes poorly to longer
sequences, as those positional embeddings for large indexes are hardly trained"; relative
encodings and URPE generalise, says their overview. A causal encoder with each encoding
copies tokens over a fixed offset, and predicts the next byte of a text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.experiments.cell import (
    Cell,
    Labels,
    Size,
    labelled,
    of_size,
    training_cell,
)
from everyformer.experiments.urpe_lengths.models import ARMS, described, encoder_of
from everyformer.experiments.urpe_lengths.tasks import NextByte, OffsetCopy
from everyformer.experiments.urpe_lengths.texts import excerpt_texts, texts_of
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig, changed
from everyformer.train.objectives.next_token import NextToken

TASKS = {"copy": "accuracy", "text": "nats"}
"""With what is measured of each."""


@dataclass(frozen=True)
class Scale:
    """The sizes of all cells, and how they are trained.

    Attributes:
        encoder: Sizes; vocabulary and length are set by the cell.
        lengths: Of the test; the first is that of training.
        offset: Of copying.
        tokens: Different ones of copying.
        train: How a cell is trained.
        evaluated: Sequences of an evaluation, at each length.
        steps: Updates of the text; copying has those of `train`.
    """

    encoder: EncoderConfig
    lengths: tuple[int, ...]
    offset: int
    tokens: int
    train: TrainConfig
    evaluated: int
    steps: int


SCALES: dict[Size, Scale] = {
    "smoke": Scale(
        encoder=EncoderConfig(2, 2, dim=16, layers=1, heads=2, ffn=32, norm="pre"),
        lengths=(8, 16),
        offset=2,
        tokens=8,
        train=TrainConfig(steps=4, batch=8, lr=3e-3, warmup=1, evaluate_every=4),
        evaluated=16,
        steps=4,
    ),
    "small": Scale(
        encoder=EncoderConfig(2, 2, dim=64, layers=2, heads=4, ffn=128, norm="pre"),
        lengths=(32, 64, 128, 256),
        offset=5,
        tokens=16,
        train=TrainConfig(
            steps=400, batch=32, lr=3e-3, table_lr=10.0, warmup=50, clip=1.0,
            log_every=50, evaluate_every=200, evaluation_batch=64,
        ),
        evaluated=256,
        steps=500,
    ),
    "reduced": Scale(
        encoder=EncoderConfig(2, 2, dim=256, layers=3, heads=8, ffn=1024, norm="pre"),
        lengths=(32, 64, 128, 256),
        offset=5,
        tokens=64,
        train=TrainConfig(
            steps=500, batch=64, lr=1e-3, table_lr=10.0, warmup=50, clip=1.0,
            log_every=100, evaluate_every=250, evaluation_batch=256,
        ),
        evaluated=1024,
        steps=800,
    ),
}  # fmt: skip


def cells(
    size: Size, seeds: Sequence[int], changes: Mapping[str, Any], data: Path | None = None
) -> list[Cell]:
    """Both tasks, every arm, seed by seed.

    Raises:
        TrainingError: If the size does not exist, or `data` is not a text.
    """
    why = "the slides name no experiment, only what it would say"
    scale = of_size(SCALES, size, "urpe-lengths", why)
    text = excerpt_texts() if data is None else texts_of(data)
    return [cell(scale, labels, changes, text) for labels in labels_of(size, seeds)]


@labelled("task", "method", "seed")
def labels_of(size: Size, seeds: Sequence[int]) -> list[tuple[str, str, int]]:
    """The labels of all cells, without any text."""
    return [(task, arm, seed) for seed in seeds for task in TASKS for arm in ARMS]


def cell(
    scale: Scale,
    labels: Labels,
    changes: Mapping[str, Any],
    text: tuple[str, Mapping[str, np.ndarray]],
) -> Cell:
    """The complete config of one run."""
    kind, arm, seed = str(labels["task"]), str(labels["method"]), int(labels["seed"])
    n, longest = scale.lengths[0], scale.lengths[-1]
    copying = partial(OffsetCopy, offset=scale.offset, tokens=scale.tokens)
    reading = partial(NextByte, name=text[0], texts=text[1])
    made = copying if kind == "copy" else reading
    task = made(seq_len=n, lengths=scale.lengths, seed=seed, evaluated=scale.evaluated)
    steps = scale.train.steps if kind == "copy" else scale.steps
    train = changed(replace(scale.train, steps=steps, seed=seed), changes)
    model = replace(
        scale.encoder,
        vocab_size=task.vocab_size,
        max_len=longest,
        head="untied",
    )
    return training_cell(
        labels,
        lambda: NextToken(encoder_of(model, arm, n)),
        described(model, arm, n),
        task,
        train,
        {},
        metric=f"{TASKS[kind]}@{longest}",
        clusters=lambda: np.arange(scale.evaluated),
    )
