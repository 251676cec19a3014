"""What `--set` changes: settings of training, of the model, and an experiment's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from everyformer.errors import TrainingError
from everyformer.train.config import TrainConfig, changed

TRAINING = tuple(field.name for field in fields(TrainConfig))
Scale = TypeVar("Scale", bound=Any)


@dataclass(frozen=True)
class Settable:
    """The settings that an experiment knows.

    Attributes:
        experiment: Its name.
        model: Names of the model's config.
        own: Names of the experiment's scale.
        told: What follows the names of training and model in a refusal.
        kinds: Kinds of cells. Where there are several, a setting of training after the
            name of a kind, as in mnli.lr, is of the cells of that kind alone.
    """

    experiment: str
    model: Sequence[str]
    own: Sequence[str]
    told: str
    kinds: Sequence[str] = ()

    def sort_out(
        self, changes: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]:
        """Changes of the model, of the scale, and of training by kind ("" without kinds).

        Raises:
            TrainingError: If names are unknown.
        """
        kinds = self.kinds or ("",)
        training: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
        unknown: list[str] = []
        for name, value in changes.items():
            kind, _, setting = name.rpartition(".")
            if name in (*self.model, *self.own):
                continue
            if setting not in TRAINING or kind not in ("", *kinds):
                unknown.append(name)
                continue
            for one in (kind,) if kind else kinds:
                if kind or f"{one}.{setting}" not in changes:
                    training[one][setting] = value
        if unknown:
            raise TrainingError(self._refusal(unknown))
        model, own = (
            {name: changes[name] for name in names if name in changes}
            for names in (self.model, self.own)
        )
        return model, own, training

    def change(self, scale: Scale, changes: Mapping[str, Any]) -> Scale:
        """A scale with fields `model` and `train`, changed.

        Raises:
            TrainingError: If names are unknown.
        """
        model, own, training = self.sort_out(changes)
        return replace(
            scale,
            model=replace(scale.model, **model),
            train=changed(scale.train, training[""]),
            **own,
        )

    def _refusal(self, unknown: Sequence[str]) -> str:
        kinds = ""
        if self.kinds:
            kinds = (
                f" for all cells or, as in mnli.lr, for those of {', '.join(self.kinds)}"
            )
        return (
            f"{self.experiment} has no setting {', '.join(sorted(unknown))}. Set "
            f"{', '.join(TRAINING)}{kinds}; {', '.join(self.model)} of the model; "
            f"{self.told}."
        )
