"""How large the models of `sparse-glue` are, how they are trained, how wide patterns are.

Sizes and rates are those of `mixers-bert`. Windows of the reduced pre-training have 256
tokens: at 128 UNION has no form of 13 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from everyformer.experiments.cell import Size
from everyformer.experiments.mixers_bert.sizes import REDUCED, SMALL, SMOKE, TUNED, Tuning
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig


@dataclass(frozen=True)
class Scale:
    """Everything that a size decides.

    Attributes:
        encoder: Sizes; the vocabulary is set by the cell, max_len is n.
        multiple: Idle tokens fill the vocabulary up to a multiple of this.
        masked: Pre-training.
        evaluated: Windows of an evaluation.
        mnli: Fine-tuning on MNLI.
        glue: Fine-tuning on the other tasks.
        tasks: Which.
        tunings: Fine-tunings of each of them, each with a seed of its own.
        widths: Of the arms.
    """

    encoder: EncoderConfig
    multiple: int
    masked: TrainConfig
    evaluated: int
    mnli: Tuning
    glue: Tuning
    tasks: tuple[str, ...]
    tunings: int
    widths: Mapping[str, int]


_SMOKE = replace(SMOKE, steps=6, log_every=3, evaluate_every=6, checkpoint_every=6)
_SMALL = replace(SMALL, evaluate_every=250, checkpoint_every=500)
_REDUCED = replace(REDUCED, batch=128, evaluate_every=500, checkpoint_every=1000)
_TUNED = replace(TUNED, evaluate_every=2000, checkpoint_every=0)
_PAPER = replace(
    _REDUCED, steps=250_000, batch=1024, accumulation=8, lr=2e-4, warmup=10_000, eps=1e-6,
    evaluate_every=5000, checkpoint_every=5000, record=False,
)  # fmt: skip
_DEVLIN = replace(_TUNED, batch=32, lr=3e-5, record=False)
WIDTHS = {
    "dense": 0, "strided-union": 16, "star": 15, "random": 16, "strided-multihead": 64,
    "fixed-union": 16,
}  # fmt: skip
"""At n = 256: 12.1 to 12.8 % of all pairs. Of random, w of the union it is as dense as."""

TASKS = ("cola", "mrpc", "rte", "sts-b", "sst-2")

SCALES: dict[Size, Scale] = {
    "smoke": Scale(
        EncoderConfig(2, 32, dim=32, layers=2, heads=2, ffn=64, segments=2),
        multiple=1, masked=_SMOKE, evaluated=32,
        mnli=Tuning(replace(_SMOKE, lr=1e-4), 1, (16, 32), 0.1, steps=6),
        glue=Tuning(replace(_SMOKE, lr=1e-4), 1, (16, 32), 0.1, steps=6),
        tasks=("cola", "sts-b"), tunings=1,
        widths={"dense": 0, "strided-multihead": 8, "star": 3, "random": 6},
    ),
    "small": Scale(
        EncoderConfig(2, 64, dim=64, layers=4, heads=2, ffn=256, segments=2),
        multiple=1, masked=_SMALL, evaluated=256,
        mnli=Tuning(replace(_SMALL, lr=3e-4), 2, (32, 64), 0.1, steps=300),
        glue=Tuning(replace(_SMALL, lr=3e-4), 2, (32, 64), 0.1, steps=150),
        tasks=TASKS, tunings=1,
        widths={"dense": 0, "strided-union": 8, "star": 6, "random": 8},
    ),
    "reduced": Scale(
        EncoderConfig(
            2, 256, dim=384, layers=6, heads=6, ffn=1536, norm="pre", segments=2
        ),
        multiple=64, masked=_REDUCED, evaluated=2048,
        mnli=Tuning(_TUNED, 3, (32, 64, 128), 0.1),
        glue=Tuning(replace(_TUNED, batch=32), 3, (32, 64, 128), 0.1),
        tasks=TASKS, tunings=3, widths=WIDTHS,
    ),
    "paper": Scale(
        EncoderConfig(2, 256, segments=2, dropout=0.1),
        multiple=64, masked=_PAPER, evaluated=4096,
        mnli=Tuning(_DEVLIN, 3, (32, 64, 128), 0.1),
        glue=Tuning(_DEVLIN, 3, (32, 64, 128), 0.1),
        tasks=TASKS, tunings=3, widths=WIDTHS,
    ),
}  # fmt: skip
