"""`urpe-synthetic`: which encodings of positions can tell positions at all.

Luo et al. 2022, Figure 1: an encoder without positions, with T5's relative positions, and
with URPE, on position identification and even token prediction. Further rows: absolute
positions, the other relative encodings, and T5 with one special token before the others,
the loophole of Theorem 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from everyformer.experiments.cell import Cell, Size, training_cell
from everyformer.experiments.urpe_synthetic.tasks import Synthetic
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig, changed
from everyformer.train.objectives.labels import Labels

ENCODINGS = {
    "urpe": "t5+urpe", "t5": "t5", "none": "none", "ape": "ape", "t5+special": "t5",
    "shaw": "shaw", "deberta": "deberta", "xl": "xl", "alibi": "alibi", "rotary": "rotary",
}  # fmt: skip
"""The rows; the first three are those of the paper."""

MAIN = ("urpe", "t5", "none")
BLIND = ("rotary", "alibi", "shaw", "deberta", "xl")
"""Further relative encodings for which Theorem 2 of Luo et al. 2022 holds, as for T5."""

TASKS: tuple[Literal["pi", "etp"], ...] = ("pi", "etp")


@dataclass(frozen=True)
class Scale:
    """The sizes of all cells, and how they are trained.

    Attributes:
        encoder: Sizes; vocabulary, length, encoding and head are set by the cell.
        seq_len: n.
        tokens: |V| of the main rows.
        train: How a cell is trained.
        evaluated: Sequences of an evaluation.
        extra_tokens: |V| of the further rows.
        extra: The further rows.
        steps: Updates by row, where they differ from `train`.
        multiple: A tied head gets idle tokens up to a multiple of this: tensor cores
            multiply 10,008 columns faster than 10,001.
    """

    encoder: EncoderConfig
    seq_len: int
    tokens: tuple[int, ...]
    train: TrainConfig
    evaluated: int
    extra_tokens: tuple[int, ...] = ()
    extra: tuple[str, ...] = ()
    steps: Mapping[str, int] = field(default_factory=dict[str, int])
    multiple: int = 1


SCALES: dict[Size, Scale] = {
    "smoke": Scale(
        encoder=EncoderConfig(2, 2, dim=16, layers=2, heads=2, ffn=32),
        seq_len=8,
        tokens=(10,),
        extra_tokens=(10,),
        extra=("ape", "t5+special"),
        train=TrainConfig(
            steps=20, batch=16, lr=3e-3, warmup=5, log_every=10, evaluate_every=10,
            checkpoint_every=10,
        ),
        evaluated=64,
    ),
    "small": Scale(
        encoder=EncoderConfig(2, 2, dim=64, layers=3, heads=4, ffn=256),
        seq_len=16,
        tokens=(10,),
        extra_tokens=(10,),
        extra=("ape", "t5+special", *BLIND),
        train=TrainConfig(
            steps=3000, batch=128, lr=1e-3, warmup=100, clip=1.0, log_every=50,
            evaluate_every=100, checkpoint_every=500, stop_at=0.9999,
        ),
        steps={"none": 300} | dict.fromkeys(("t5", *BLIND), 1000),
        evaluated=512,
    ),
    "paper": Scale(
        encoder=EncoderConfig(2, 2, dim=768, layers=3, heads=12, ffn=3072),
        seq_len=128,
        tokens=(10, 1000, 10000),
        extra_tokens=(1000,),
        extra=("ape", "t5+special", *BLIND),
        train=TrainConfig(
            steps=16_000, batch=64, lr=1e-4, table_lr=20.0, warmup=500, betas=(0.9, 0.98),
            clip=1.0, precision="bf16", record=True, log_every=100, evaluate_every=500,
            checkpoint_every=5000, stop_at=0.9995,
        ),
        steps={"none": 600} | dict.fromkeys(("t5", "t5+special", *BLIND), 3000),
        evaluated=3200,
        multiple=8,
    ),
}  # fmt: skip


def cells(size: Size, seeds: Sequence[int], changes: Mapping[str, Any]) -> list[Cell]:
    """URPE first, then the other rows of the paper, then the further rows."""
    scale = SCALES[size]
    rows = [(MAIN, scale.tokens), (scale.extra, scale.extra_tokens)]
    return [
        cell(size, task, method, tokens, seed, changes)
        for methods, vocabularies in rows
        for seed in seeds
        for method in methods
        for task in TASKS
        for tokens in vocabularies
    ]


def model_of(
    encoder: EncoderConfig, task: Synthetic, method: str, multiple: int
) -> EncoderConfig:
    """The encoder of a row: its positions, and a head for what the task asks."""
    predicts = task.kind == "etp"
    return replace(
        encoder,
        vocab_size=task.vocab_size + (-task.vocab_size % multiple if predicts else 0),
        max_len=task.length,
        encoding=ENCODINGS[method],
        head="tied" if predicts else "untied",
        labels=None if predicts else task.seq_len,
    )


def cell(
    size: Size,
    kind: Literal["pi", "etp"],
    method: str,
    tokens: int,
    seed: int,
    changes: Mapping[str, Any],
) -> Cell:
    """The complete config of one run."""
    scale = SCALES[size]
    special, evaluated = method == "t5+special", scale.evaluated
    task = Synthetic(
        kind, scale.seq_len, tokens, seed, special=special, evaluated=evaluated
    )
    model = model_of(scale.encoder, task, method, scale.multiple)
    steps = scale.steps.get(method, scale.train.steps)
    train = changed(replace(scale.train, steps=steps, seed=seed), changes)
    labels = {"task": kind, "method": method, "tokens": tokens, "seed": seed}
    more = {"chance": task.chance}
    return training_cell(
        labels, lambda: Labels(Encoder(model)), model.to_json(), task, train, more
    )
