"""What `--set` changes in the cells of `mixers-bert`.

A plain name changes all cells, such as steps=100; one after the name of a task changes the
cells of that task alone: mlm.lr=5e-4, mnli.lr=2e-4, squad.epochs=3. Names are those of
`TrainConfig`, and some of the model and the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from everyformer.errors import TrainingError
from everyformer.experiments.mixers_bert.sizes import Scale, Tuning
from everyformer.train.config import TrainConfig, changed

KINDS = ("mlm", "mnli", "squad")
MODEL = ("layers", "dim", "heads", "ffn", "norm", "dropout", "filters", "filter_length")
TUNING = ("epochs", "dropout")
TRAINING = tuple(field.name for field in fields(TrainConfig))


@dataclass(frozen=True)
class Settings:
    """A scale with all changes.

    Attributes:
        scale: With models and data as they are to be.
        of: Changes of `TrainConfig` by kind of task.
        ambiguous: What becomes of questions whose answer occurs more than once.
    """

    scale: Scale
    of: Mapping[str, Mapping[str, Any]]
    ambiguous: str

    def train(self, kind: str, config: TrainConfig) -> TrainConfig:
        """A config with the changes of a kind of task."""
        return changed(config, self.of[kind])


def settings(scale: Scale, changes: Mapping[str, Any]) -> Settings:
    """Sort changes to where they belong.

    Raises:
        TrainingError: If a name is unknown.
    """
    left = dict(changes)
    ambiguous = left.pop("ambiguous", "drop")
    model = {name: left.pop(name) for name in MODEL if name in left}
    scale = replace(
        scale,
        encoder=replace(scale.encoder, **model),
        evaluated=left.pop("mlm.evaluated", scale.evaluated),
        mnli=_tuned(scale.mnli, "mnli", left),
        squad=_tuned(scale.squad, "squad", left),
    )
    of: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for name, value in left.items():
        kind, _, own = name.rpartition(".")
        if own not in TRAINING or kind not in ("", *KINDS):
            msg = (
                f"mixers-bert has no setting {name}. Set {', '.join(TRAINING)} for all "
                f"cells or, as in mnli.lr, for those of {', '.join(KINDS)}; "
                f"{', '.join(MODEL)} of the model; mnli.epochs, squad.epochs, "
                "mlm.evaluated, ambiguous."
            )
            raise TrainingError(msg)
        for one in (kind,) if kind else KINDS:
            if kind or f"{one}.{own}" not in left:
                of[one][own] = value
    return Settings(scale, of, ambiguous)


def _tuned(tuning: Tuning, kind: str, left: dict[str, Any]) -> Tuning:
    given = {
        name: left.pop(f"{kind}.{name}") for name in TUNING if f"{kind}.{name}" in left
    }
    return replace(tuning, **given)
