"""`urpe-images`: small images with absolute positions, Swin's, and URPE on top of Swin.

Luo et al. 2022 (slides) name Swin among the relative encodings and say that URPE "can be
applied to tasks beyond NLP"; images ask for translation, which absolute positions do not
give. Attention runs in shifted windows. The control has a gain that is one number for each
head: it tells a gain by offset from a mere rescaling of attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.errors import TrainingError
from everyformer.experiments.cell import Cell, Size, labelled, of_size, training_cell
from everyformer.experiments.urpe_images.data import Images, bars, images_of
from everyformer.experiments.urpe_images.task import MovedImages
from everyformer.layers.models.image_encoder import ImageConfig, ImageEncoder
from everyformer.train.config import TrainConfig, changed
from everyformer.train.objectives.classify import ClassifyImages

ARMS = ("ape", "swin", "swin+urpe", "swin+c1")


@dataclass(frozen=True)
class Scale:
    """The sizes of all cells, and how they are trained.

    Attributes:
        margin: Empty pixels on each side of an image of 8 x 8; larger images have as many.
        patches: Patches of the side of a canvas; its pixels must be a multiple.
        window: Patches of the side of a window.
        encoder: dim, layers, heads and ffn.
        train: How a cell is trained.
        evaluated: Images of an evaluation, at most.
    """

    margin: int
    patches: int
    window: int
    encoder: Mapping[str, int]
    train: TrainConfig
    evaluated: int


SCALES: dict[Size, Scale] = {
    "smoke": Scale(
        margin=2, patches=6, window=4,
        encoder={"dim": 8, "layers": 2, "heads": 2, "ffn": 16},
        train=TrainConfig(steps=4, batch=16, lr=3e-3, warmup=1, evaluate_every=4),
        evaluated=24,
    ),
    "small": Scale(
        margin=4, patches=8, window=4,
        encoder={"dim": 32, "layers": 4, "heads": 4, "ffn": 64},
        train=TrainConfig(
            steps=400, batch=32, lr=3e-3, table_lr=5.0, warmup=40, clip=1.0,
            weight_decay=0.01, log_every=50, evaluate_every=200,
        ),
        evaluated=400,
    ),
    "reduced": Scale(
        margin=4, patches=8, window=4,
        encoder={"dim": 96, "layers": 6, "heads": 6, "ffn": 192},
        train=TrainConfig(
            steps=1500, batch=128, lr=1e-3, table_lr=5.0, warmup=100, clip=1.0,
            weight_decay=0.01, record=True, log_every=100, evaluate_every=500,
        ),
        evaluated=2000,
    ),
}  # fmt: skip


def cells(
    size: Size, seeds: Sequence[int], changes: Mapping[str, Any], data: Path | None = None
) -> list[Cell]:
    """Every arm, seed by seed.

    Raises:
        TrainingError: If the size does not exist, or the images cannot be read.
    """
    why = "the slides print no number for images"
    scale = of_size(SCALES, size, "urpe-images", why)
    images = bars() if size == "smoke" and data is None else images_of(data)
    return [cell(scale, arm, seed, changes, images) for seed in seeds for arm in ARMS]


@labelled("method", "seed")
def labels_of(size: Size, seeds: Sequence[int]) -> list[tuple[str, int]]:
    """The labels of all cells, without any images."""
    return [(arm, seed) for seed in seeds for arm in ARMS]


def cell(
    scale: Scale, arm: str, seed: int, changes: Mapping[str, Any], images: Images
) -> Cell:
    """The complete config of one run."""
    task = MovedImages(
        images=images, margin=scale.margin, seed=seed, evaluated=scale.evaluated
    )
    if task.side % scale.patches:
        msg = (
            f"Images of {task.side - 2 * scale.margin} pixels with a margin of "
            f"{scale.margin} make a canvas of {task.side}, which {scale.patches} patches "
            "in a row do not divide. Cut or fill them up to a multiple."
        )
        raise TrainingError(msg)
    config = ImageConfig(
        side=task.side, channels=task.channels, levels=images.levels,
        patch=task.side // scale.patches, window=scale.window, classes=images.classes,
        encoding=arm, **scale.encoder,
    )  # fmt: skip
    described = {**config.to_json(), "encoding": "by arm", "mixers": arm}
    return training_cell(
        {"method": arm, "seed": seed},
        lambda: ClassifyImages(ImageEncoder(config)),
        described,
        task,
        changed(replace(scale.train, seed=seed), changes),
        {"chance": 1 / images.classes},
        clusters=lambda: np.arange(task.count("test")),
    )
