"""What `--set` changes in the cells of `mixers-bert`.

A plain name changes all cells, such as steps=100; one after the name of a task changes the
cells of that task alone: mlm.lr=5e-4, mnli.lr=2e-4, squad.epochs=3. Names are those of
`TrainConfig`, and some of the model and the data.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everyformer.experiments.changes import Settable
from everyformer.experiments.mixers_bert.sizes import Scale, Tuning

TUNING = ("epochs", "dropout")
SETTABLE = Settable(
    "mixers-bert",
    model=("layers", "dim", "heads", "ffn", "norm", "dropout", "filters", "filter_length"),
    own=(
        *(f"{kind}.{name}" for kind in ("mnli", "squad") for name in TUNING),
        "mlm.evaluated",
        "ambiguous",
    ),
    told="mnli.epochs, mnli.dropout, squad.epochs, squad.dropout, mlm.evaluated, ambiguous",
    kinds=("mlm", "mnli", "squad"),
)


def with_changes(
    scale: Scale, changes: Mapping[str, Any]
) -> tuple[Scale, dict[str, dict[str, Any]]]:
    """A scale with what `--set` changes, and the changes of training by kind of task.

    Raises:
        TrainingError: If a name is unknown.
    """
    model, own, of = SETTABLE.sort_out(changes)
    scale = replace(
        scale,
        encoder=replace(scale.encoder, **model),
        evaluated=own.get("mlm.evaluated", scale.evaluated),
        mnli=_tuned(scale.mnli, "mnli", own),
        squad=_tuned(scale.squad, "squad", own),
        ambiguous=own.get("ambiguous", scale.ambiguous),
    )
    return scale, of


def _tuned(tuning: Tuning, kind: str, own: Mapping[str, Any]) -> Tuning:
    given = {name: own[f"{kind}.{name}"] for name in TUNING if f"{kind}.{name}" in own}
    return replace(tuning, **given)
