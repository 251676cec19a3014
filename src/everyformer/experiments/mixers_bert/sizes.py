"""How large the models of `mixers-bert` are, and how they are trained.

Reduced follows pilots on one H200: with post-norm, or with fewer tokens in an update,
attention stays for thousands of updates where it knows word frequencies alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from everyformer.data.buckets import Bucketed
from everyformer.experiments.cell import Size
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig, changed


@dataclass(frozen=True)
class Tuning:
    """A fine-tuning.

    Attributes:
        train: How; steps and warm-up follow from the number of examples.
        epochs: Over the training examples.
        lengths: To which sequences are filled up; the last is the longest.
        dropout: In the encoder and before the classes; attention has none.
        warmup: Share of the updates.
        steps: Updates, if not those of the epochs.
    """

    train: TrainConfig
    epochs: int
    lengths: tuple[int, ...]
    dropout: float
    warmup: float = 0.1
    steps: int | None = None

    def config(self, task: Bucketed, changes: Mapping[str, Any]) -> TrainConfig:
        """How a task is learnt; updates and warm-up follow from its examples."""
        batch = changes.get("batch", self.train.batch)
        steps = changes.get("steps", self.steps or task.updates(batch, self.epochs))
        own = replace(self.train, steps=steps, warmup=int(self.warmup * steps))
        return changed(own, changes)


@dataclass(frozen=True)
class Scale:
    """Everything that a size decides.

    Attributes:
        encoder: Sizes; vocabulary and mixers are set by the cell.
        multiple: Idle tokens fill the vocabulary up to a multiple of this: tensor cores
            multiply 30,528 columns faster than 30,522.
        masked: Pre-training of Table 1.
        evaluated: Windows of an evaluation.
        long: Pre-training for SQuAD and Figure 1.
        long_length: Its longest windows.
        long_batch: How many of them are in an update.
        long_share: Share of its updates, the last ones, that have them.
        mnli: Fine-tuning on pairs of sentences.
        squad: Fine-tuning on questions.
        stride: Tokens from one window of a context to the next.
        hybrids: Numbers j of light layers at the bottom; the first two are of the core.
        ambiguous: What becomes of questions whose answer occurs more than once.
    """

    encoder: EncoderConfig
    multiple: int
    masked: TrainConfig
    evaluated: int
    long: TrainConfig
    long_length: int
    long_batch: int
    long_share: float
    mnli: Tuning
    squad: Tuning
    stride: int
    hybrids: tuple[int, ...]
    ambiguous: str = "drop"


SMOKE = TrainConfig(
    steps=10, batch=8, lr=1e-3, warmup=2, clip=1.0, weight_decay=0.01, decay_biases=False,
    betas=(0.9, 0.98), log_every=5, evaluate_every=5, checkpoint_every=5,
)  # fmt: skip
SMALL = replace(
    SMOKE, steps=1000, batch=32, warmup=100, log_every=50, evaluate_every=100,
    checkpoint_every=250,
)  # fmt: skip
REDUCED = TrainConfig(
    steps=4000, batch=256, lr=1e-3, warmup=500, clip=1.0, weight_decay=0.01,
    decay_biases=False, betas=(0.9, 0.98), precision="bf16", compile=True, record=True,
    log_every=50, evaluate_every=250, checkpoint_every=4000,
)  # fmt: skip
_TABLE_1 = TrainConfig(
    steps=60_000, batch=8192, accumulation=64, lr=5.66e-4, warmup=10_000, eps=1e-6,
    weight_decay=0.01, decay_biases=False, precision="bf16", compile=True, log_every=100,
    evaluate_every=1000, checkpoint_every=1000,
)  # fmt: skip
_FIGURE_1 = replace(_TABLE_1, steps=250_000, batch=1024, accumulation=8, lr=2e-4)
TUNED = replace(REDUCED, batch=64, lr=1e-4, compile=False, evaluate_every=500)
_DEVLIN = replace(_TABLE_1, batch=32, accumulation=1, lr=3e-5, compile=False)

SCALES: dict[Size, Scale] = {
    "smoke": Scale(
        encoder=EncoderConfig(
            2, 32, dim=32, layers=2, heads=2, ffn=64, segments=2, filters=2,
            filter_length=8,
        ),
        multiple=1, masked=SMOKE, evaluated=32,
        long=SMOKE, long_length=96, long_batch=4, long_share=0.2,
        mnli=Tuning(replace(SMOKE, lr=1e-4), 1, (16, 32), 0.1, steps=10),
        squad=Tuning(replace(SMOKE, lr=1e-4), 1, (96,), 0.1, steps=10),
        stride=16, hybrids=(1,),
    ),
    "small": Scale(
        encoder=EncoderConfig(
            2, 64, dim=64, layers=4, heads=2, ffn=256, segments=2, filters=4,
            filter_length=16,
        ),
        multiple=1, masked=SMALL, evaluated=256,
        long=SMALL, long_length=128, long_batch=16, long_share=0.1,
        mnli=Tuning(replace(SMALL, lr=3e-4), 2, (32, 64), 0.1, steps=300),
        squad=Tuning(replace(SMALL, lr=3e-4), 2, (128,), 0.1, steps=300),
        stride=64, hybrids=(1, 2),
    ),
    "reduced": Scale(
        encoder=EncoderConfig(
            2, 128, dim=384, layers=6, heads=6, ffn=1536, norm="pre", segments=2,
            filters=8, filter_length=32,
        ),
        multiple=64, masked=REDUCED, evaluated=4096,
        long=REDUCED, long_length=256, long_batch=128, long_share=0.1,
        mnli=Tuning(TUNED, 3, (32, 64, 128), 0.1),
        squad=Tuning(replace(TUNED, batch=48), 2, (192, 256), 0.1),
        stride=128, hybrids=(1, 2, 4),
    ),
    "paper": Scale(
        encoder=EncoderConfig(2, 512, segments=2, dropout=0.01),
        multiple=1, masked=_TABLE_1, evaluated=4096,
        long=_FIGURE_1, long_length=512, long_batch=1024, long_share=0.0,
        mnli=Tuning(_DEVLIN, 3, (32, 64, 128), 0.1),
        squad=Tuning(replace(_DEVLIN, lr=5e-5), 3, (192, 256, 384), 0.1),
        stride=128, hybrids=tuple(range(1, 12)),
    ),
}  # fmt: skip
