"""How large the models of `sparse-lm` are, how they are trained, and how wide patterns are.

Widths are chosen so that arms of one set have about one density; the table of results shows
the density of each. UNION cannot be sparser than about 12 % at n = 256.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from everyformer.experiments.cell import Size
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig

DENSE = "100"
"""The set of dense attention, which has every allowed pair."""


@dataclass(frozen=True)
class Scale:
    """Everything that a size decides.

    Attributes:
        model: Sizes; the vocabulary is set by the cell, max_len is n.
        multiple: Idle tokens fill the vocabulary up to a multiple of this: tensor cores
            multiply 30,528 columns faster than 30,522.
        train: How.
        sets: For each density, in per cent, the width of each of its arms; the first is
            the one that claims are about.
        most: Documents of an evaluation; None for all.
    """

    model: EncoderConfig
    multiple: int
    train: TrainConfig
    sets: Mapping[str, Mapping[str, int]]
    most: int | None = None


_SMOKE = TrainConfig(
    steps=10, batch=8, lr=1e-3, warmup=2, decay="cosine", clip=1.0, weight_decay=0.01,
    decay_biases=False, betas=(0.9, 0.98), log_every=5, evaluate_every=5,
    checkpoint_every=5, evaluation_batch=32,
)  # fmt: skip

_DENSE = {DENSE: {"dense": 0}}
_OF_13 = {
    "strided-union": 16, "star": 15, "random": 32, "fixed-union": 16,
    "strided-multihead": 64, "strided-sequential": 64, "fixed-multihead": 64,
    "fixed-sequential": 64, "star-first": 15,
}  # fmt: skip
_OF_26 = {"strided-union": 64, "star": 32, "random": 65, "fixed-union": 64}

SCALES: dict[Size, Scale] = {
    "smoke": Scale(
        EncoderConfig(2, 32, dim=32, layers=2, heads=2, ffn=64, norm="pre"),
        multiple=1,
        train=_SMOKE,
        sets=_DENSE | {
            "21": {
                "strided-multihead": 8, "fixed-sequential": 8, "star-first": 2, "random": 5,
            },
        },
        most=8,
    ),
    "small": Scale(
        EncoderConfig(2, 64, dim=64, layers=2, heads=2, ffn=256, norm="pre"),
        multiple=1,
        train=replace(
            _SMOKE, steps=600, batch=16, warmup=60, log_every=20, evaluate_every=100,
            checkpoint_every=300,
        ),
        sets=_DENSE | {"25": {"strided-union": 8, "star": 6, "random": 15}},
        most=24,
    ),
    "reduced": Scale(
        EncoderConfig(2, 256, dim=256, layers=12, heads=8, ffn=1024, norm="pre"),
        multiple=64,
        train=replace(
            _SMOKE, steps=6400, batch=64, warmup=500, precision="bf16", compile=True,
            record=True, log_every=50, evaluate_every=1500, checkpoint_every=6400,
            evaluation_batch=128,
        ),
        sets=_DENSE | {"13": _OF_13, "26": _OF_26},
    ),
    "paper": Scale(
        EncoderConfig(2, 256, dim=512, layers=12, heads=8, ffn=2048, norm="pre"),
        multiple=64,
        train=TrainConfig(
            steps=250_000, batch=256, lr=1e-3, warmup=8000, decay="inverse-sqrt", clip=1.0,
            betas=(0.9, 0.98), eps=1e-9, precision="bf16", compile=True, record=True,
            log_every=200, evaluate_every=5000, checkpoint_every=5000,
            evaluation_batch=128,
        ),
        sets=_DENSE | {
            "13": _OF_13,
            "26": {
                **_OF_26, "strided-multihead": 152, "strided-sequential": 152,
                "fixed-multihead": 128, "fixed-sequential": 128, "star-first": 32,
            },
        },
        most=20_000,
    ),
}  # fmt: skip
