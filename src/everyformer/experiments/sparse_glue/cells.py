"""`sparse-glue`: is BERT with sparse attention as good, and with which pattern?

Yun et al. 2020 (sparse): BERT with sparse patterns on MNLI and XNLI, against the sparsity.
Here every arm is pre-trained with its pattern in all layers, then fine-tuned with it. The
relay of STAR is the first token, [CLS]: the last one would be padding. A sequence shorter
than the windows of pre-training has the leading part of the pattern, as if it were padded
to the full length: RANDOM is matched with the union of STRIDED, so that both leave a short
sequence equally many connections.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.data import glue_metrics
from everyformer.data.glue import Glue
from everyformer.data.nli import Pairs
from everyformer.data.packs.pack import Pack
from everyformer.data.windows import MaskedWindows
from everyformer.experiments.cell import Cell, Labels, Size, training_cell
from everyformer.experiments.changes import Settable
from everyformer.experiments.mixers_bert.cells import left_plateau
from everyformer.experiments.needed_packs import packs_of_kinds
from everyformer.experiments.sparse_arms import Arm, operations
from everyformer.experiments.sparse_glue.plan import OTHER_SEEDS, PRETRAINED, order
from everyformer.experiments.sparse_glue.sizes import SCALES, Scale
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import changed
from everyformer.train.loop import Outcome
from everyformer.train.objectives.classify import Classify, TextScore
from everyformer.train.objectives.masked import MaskedLanguage

KINDS = (("enwiki-wp-48m", "enwiki-wp", "enwiki-wp-36m"), ("nli",), ("glue",))
"""Names of the packs of each kind; the first that is there is read."""

PATTERNS = {"star": "star-first", "random": "random-matched"}
"""What an arm is where it is not the one of its name."""

SETTABLE = Settable(
    "sparse-glue",
    model=("dim", "layers", "heads", "ffn", "norm"),
    own=("evaluated", "tunings"),
    told="evaluated, tunings",
    kinds=("mlm", "mnli", "glue"),
)


def cells(
    size: Size, seeds: Sequence[int], changes: Mapping[str, Any], data: Path | None = None
) -> list[Cell]:
    """All cells in the order of `plan.order`; each fine-tuning has its parent."""
    scale, of = with_changes(SCALES[size], changes)
    packs = packs_of_kinds(__package__ or "", "sparse-glue", size, data, KINDS)
    maker = Maker(scale, of, packs)
    made: dict[tuple[str, int], Cell] = {}
    found: list[Cell] = []
    for labels in order(size, seeds):
        key = (str(labels["arm"]), int(labels["seed"]))
        if int(labels["tuning"]) >= scale.tunings:
            continue
        cell = maker.cell(labels, made.get(key))
        if labels["task"] == PRETRAINED:
            made[key] = cell
        found.append(cell)
    return found


def with_changes(
    scale: Scale, changes: Mapping[str, Any]
) -> tuple[Scale, dict[str, dict[str, Any]]]:
    """A scale with what `--set` changes, and the changes of training by kind of task.

    Raises:
        TrainingError: If a name is unknown.
    """
    model, own, of = SETTABLE.sort_out(changes)
    return replace(scale, encoder=replace(scale.encoder, **model), **own), of


class Maker:
    """Makes cells; those that read the same examples share them."""

    def __init__(
        self, scale: Scale, of: Mapping[str, Mapping[str, Any]], packs: Sequence[Pack]
    ) -> None:
        """Of a scale, changes of training by kind of task, and packs in one vocabulary."""
        text, pairs, glue = packs
        self.scale, self.of, self.vocabulary = scale, of, text.vocabulary
        n = scale.encoder.max_len
        self._windows = cache(partial(MaskedWindows, text, n, evaluated=scale.evaluated))
        self._pairs = cache(
            partial(Pairs, pairs, lengths=scale.mnli.lengths, held_out=True)
        )
        self._glue = cache(partial(Glue, glue, lengths=scale.glue.lengths))

    def cell(self, labels: Labels, parent: Cell | None) -> Cell:
        """The complete config of one run."""
        if labels["task"] == PRETRAINED:
            return self._masked(labels)
        return self._tuned(labels, parent)

    def arm(self, labels: Labels) -> Arm:
        """The arm of a cell."""
        name, n = str(labels["arm"]), self.scale.encoder.max_len
        pattern, width = PATTERNS.get(name, name), self.scale.widths[name]
        return Arm(pattern, width, n, causal=False, draw=int(labels["seed"]))

    def model(self, **more: Any) -> EncoderConfig:
        """The encoder; its vocabulary is filled up with idle tokens."""
        words = self.vocabulary
        padded = words + -words % self.scale.multiple
        return replace(self.scale.encoder, vocab_size=padded, pooler=True, **more)

    def _masked(self, labels: Labels) -> Cell:
        """The cell of pre-training, on masked words."""
        seed, arm, model = int(labels["seed"]), self.arm(labels), self.model()
        config = replace(changed(self.scale.masked, self.of["mlm"]), seed=seed)
        windows = self._windows(seed)
        objective = "masked words, next sentence"
        described = {**model.to_json(), "mixers": arm.to_json(), "objective": objective}
        work = operations(model, config, model.max_len, windows.masked(model.max_len))
        return training_cell(
            labels,
            lambda: MaskedLanguage(arm.encoder(model)),
            described,
            windows,
            config,
            {**self._density(arm), "operations": work},
            clusters=lambda: windows.clusters("test"),
            operations=work,
            derived=left_plateau,
        )

    def _tuned(self, labels: Labels, parent: Cell | None) -> Cell:
        """Fine-tuning on MNLI or a task of GLUE."""
        name, arm = str(labels["task"]), self.arm(labels)
        seed = int(labels["seed"]) + OTHER_SEEDS * int(labels["tuning"])
        kind = "mnli" if name == "mnli" else "glue"
        tuning = self.scale.mnli if kind == "mnli" else self.scale.glue
        task = self._pairs(seed) if name == "mnli" else self._glue(name, seed)
        model = self.model(head="none", dropout=tuning.dropout)
        config = replace(tuning.config(task, self.of[kind]), seed=seed)
        classes = task.classes

        def build() -> Classify | TextScore:
            if classes is None:
                return TextScore(arm.encoder(model), tuning.dropout)
            return Classify(arm.encoder(model), classes, tuning.dropout)

        def metric(outcome: Outcome) -> tuple[float, float]:
            found = outcome.scores
            return glue_metrics.with_error(name, found["prediction"], found["label"])

        objective = "score" if classes is None else "classes"
        described = {**model.to_json(), "mixers": arm.to_json(), "objective": objective}
        return training_cell(
            labels,
            build,
            described,
            task,
            config,
            {**self._density(arm), "seen": 100 * share_seen(arm, task.sizes["test"])},
            metric="squared_error" if classes is None else "accuracy",
            parent=parent,
            clusters=lambda: task.clusters("test"),
            operations=operations(model, config, tuning.lengths[-1], 0),
            shown=metric if isinstance(task, Glue) else None,
        )

    def _density(self, arm: Arm) -> dict[str, Any]:
        density = 100 * arm.density(self.scale.encoder.layers)
        return {"density": density, "width": arm.width}


def share_seen(arm: Arm, sizes: np.ndarray) -> float:
    """Connections / pairs among the tokens of an example, the mean over examples.

    Padding hides keys, such as the summary columns of FIXED: of the first m tokens of a
    pattern those below m are left.
    """
    masks = np.stack([part.mask() for part in arm.parts(0)]).mean(0)
    within = np.cumsum(np.cumsum(masks, 0), 1).diagonal()
    return float((within[sizes - 1] / sizes**2).mean())
