"""How large the models of `urpe-zinc` and `urpe-qm9` are, and how they are trained."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from everyformer.experiments.cell import Size, of_size
from everyformer.layers.graphs.graphormer import SMALL, GraphormerConfig
from everyformer.train.config import TrainConfig, changed

WARM_UP = 0.1
"""Share of the updates, as in the public code: 40,000 of 400,000."""


@dataclass(frozen=True)
class Scale:
    """What a size decides.

    Attributes:
        model: Sizes; the gain is set by the arm.
        train: How; the warm-up is `WARM_UP` of the updates unless it is set.
        standardised: Whether targets are divided by their deviation for the loss.
    """

    model: GraphormerConfig
    train: TrainConfig
    standardised: bool = False


_SMOKE = TrainConfig(
    steps=6, batch=8, lr=1e-3, warmup=1, clip=5.0, weight_decay=0.01, decay_biases=False,
    log_every=3, evaluate_every=3, checkpoint_every=3,
)  # fmt: skip
_SMALL = replace(
    _SMOKE, steps=2500, batch=32, table_lr=10.0, warmup=250, log_every=50,
    evaluate_every=250, checkpoint_every=500,
)  # fmt: skip
_REDUCED = TrainConfig(
    steps=60_000, batch=256, lr=4e-4, table_lr=10.0, warmup=6000, decay="polynomial",
    end_lr=1e-9, clip=5.0, weight_decay=0.01, decay_biases=False, precision="tf32",
    compile=True, record=True, log_every=250, evaluate_every=1000, evaluation_batch=1024,
    checkpoint_every=5000,
)  # fmt: skip
_QM9 = replace(_REDUCED, steps=25_000, batch=1024, lr=3e-4, warmup=2500, weight_decay=0.0)
_TINY = GraphormerConfig(
    layers=2, dim=16, heads=2, ffn=16, dropout=0.1, attention_dropout=0.1
)
_LAPTOP = GraphormerConfig(
    layers=6, dim=48, heads=4, ffn=48, dropout=0.0, attention_dropout=0.0, input_dropout=0.0
)
_OF_QM9 = replace(
    SMALL, node_rows=64, degree_rows=64, edge_rows=64, max_distance=38, distance_rows=40
)

SCALES: dict[str, dict[Size, Scale]] = {
    "urpe-zinc": {
        "smoke": Scale(_TINY, _SMOKE),
        "small": Scale(_LAPTOP, _SMALL),
        "reduced": Scale(GraphormerConfig(), _REDUCED),
        "paper": Scale(
            GraphormerConfig(),
            replace(_REDUCED, steps=400_000, lr=2e-4, table_lr=1.0, warmup=40_000),
        ),
    },
    "urpe-qm9": {
        "smoke": Scale(_TINY, _SMOKE, standardised=True),
        "small": Scale(_LAPTOP, _SMALL, standardised=True),
        "reduced": Scale(_OF_QM9, _QM9, standardised=True),
    },
}

MODEL = tuple(field.name for field in fields(GraphormerConfig) if field.name != "gain")


def scale_of(experiment: str, size: Size, changes: Mapping[str, Any]) -> Scale:
    """The scale of a size with changes of `--set`: of the model, or of training.

    Raises:
        TrainingError: If there is no such size, or a name is unknown.
    """
    why = "it stands in for PCQM4M, which cannot be run here"
    scale = of_size(SCALES[experiment], size, experiment, why)
    own = {name: value for name, value in changes.items() if name in MODEL}
    rest = {name: value for name, value in changes.items() if name not in MODEL}
    steps = rest.get("steps", scale.train.steps)
    if "steps" in rest and "warmup" not in rest and type(steps) is int:
        rest["warmup"] = int(WARM_UP * steps)
    model = GraphormerConfig(**{**asdict(scale.model), **own})
    return replace(scale, model=model, train=changed(scale.train, rest))
