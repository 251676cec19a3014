"""`mixers-bert`: can something simpler stand in for attention?

Yun et al. 2020, Section 6.3: BERT whose attention is replaced in all layers by averaging,
a bi-linear projection or a separable convolution (Table 1), or by convolution in the first
j layers (Figure 1). Pre-training on masked words and next sentences, then MNLI and SQuAD.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from everyformer.data.nli import Pairs
from everyformer.data.packs.pack import Pack
from everyformer.data.squad.task import Questions
from everyformer.data.windows import MaskedWindows
from everyformer.experiments.cell import Cell, Labels, Size, training_cell
from everyformer.experiments.mixers_bert.plan import PARENTS, mixers_of, order
from everyformer.experiments.mixers_bert.settings import with_changes
from everyformer.experiments.mixers_bert.sizes import SCALES, Scale, Tuning
from everyformer.experiments.needed_packs import packs_of_kinds
from everyformer.experiments.rates import at_rate, split_rate
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig, changed
from everyformer.train.loop import Outcome
from everyformer.train.objectives.classify import Classify
from everyformer.train.objectives.masked import MaskedLanguage
from everyformer.train.objectives.span import Span
from everyformer.train.throughput import BACKWARD

TEXT = ("enwiki-wp", "enwiki-wp-48m")
"""Packs of running text: either will do; the first that is there is read."""

PLATEAU = 5.5
"""Nats: above, a model of this vocabulary knows little more than how frequent words are."""


def cells(
    size: Size, seeds: Sequence[int], changes: Mapping[str, Any], data: Path | None = None
) -> list[Cell]:
    """All cells in the order of `plan.order`; each fine-tuning has its parent."""
    scale, of = with_changes(SCALES[size], changes)
    kinds = (TEXT, ("nli",), ("squad",))
    packs = packs_of_kinds(__package__ or "", "mixers-bert", size, data, kinds)
    maker = Maker(scale, of, packs)
    made: dict[tuple[str, str, int], Cell] = {}
    for labels in order(size, seeds):
        task, arm, seed = str(labels["task"]), str(labels["arm"]), int(labels["seed"])
        parent = made.get((PARENTS.get(task, ""), arm, seed))
        made[task, arm, seed] = maker.cell(task, arm, seed, parent)
    return list(made.values())


class Maker:
    """Makes cells; those that read the same examples share them."""

    def __init__(
        self, scale: Scale, of: Mapping[str, Mapping[str, Any]], packs: Sequence[Pack]
    ) -> None:
        """Of a scale, changes of training by kind of task, and packs in one vocabulary."""
        text, pairs, questions = packs
        self.scale, self.of, self.vocabulary = scale, of, text.vocabulary
        n, squad = scale.encoder.max_len, scale.squad
        self._windows = cache(partial(MaskedWindows, text, n, evaluated=scale.evaluated))
        self._pairs = cache(
            partial(Pairs, pairs, lengths=scale.mnli.lengths, held_out=True)
        )
        self._questions = cache(
            partial(
                Questions, questions, length=squad.lengths[-1], stride=scale.stride,
                lengths=squad.lengths, ambiguous=scale.ambiguous,
            )
        )  # fmt: skip

    def cell(self, task: str, arm: str, seed: int, parent: Cell | None) -> Cell:
        """The complete config of one run."""
        labels = {"task": task, "arm": arm, "seed": seed}
        if task in ("mnli", "hypothesis", "mnli-long"):
            return self._classified(labels, parent)
        return self._asked(labels, parent) if task == "squad" else self._masked(labels)

    def encoder(self, arm: str, length: int, **more: Any) -> EncoderConfig:
        """The encoder of an arm; its vocabulary is filled up with idle tokens."""
        words = self.vocabulary
        return replace(
            self.scale.encoder,
            vocab_size=words + -words % self.scale.multiple,
            max_len=length,
            mixers=mixers_of(arm, self.scale.encoder.layers),
            shorter=True,
            **more,
        )

    def _masked(self, labels: Labels) -> Cell:
        """Pre-training: of Table 1, of Figure 1 and SQuAD, or short at another rate."""
        scale, task = self.scale, labels["task"]
        long = task == "mlm-long"
        config = changed(scale.long if long else scale.masked, self.of["mlm"])
        config = replace(config, seed=int(labels["seed"]))
        config = at_rate(config, split_rate(str(task))[1])
        n = scale.encoder.max_len
        longer = None
        if long and scale.long_share:
            first = config.steps - round(scale.long_share * config.steps)
            longer = (first, scale.long_length, scale.long_batch)
        model = self.encoder(
            str(labels["arm"]), scale.long_length if long else n, pooler=True
        )
        windows = self._windows(config.seed, longer=longer)
        operations = _pretraining_operations(model, config, windows)
        return training_cell(
            labels,
            lambda: MaskedLanguage(Encoder(model)),
            {**model.to_json(), "objective": "masked words, next sentence"},
            windows,
            config,
            {"operations": operations},
            clusters=lambda: windows.clusters("test"),
            operations=operations,
            derived=left_plateau,
        )

    def _classified(self, labels: Labels, parent: Cell | None) -> Cell:
        """Fine-tuning on pairs of sentences."""
        scale, hidden = self.scale, labels["task"] == "hypothesis"
        long, tuning = labels["task"] == "mnli-long", scale.mnli
        seed = int(labels["seed"])
        pairs = self._pairs(seed, premise_masked=hidden)
        length = scale.long_length if long else scale.encoder.max_len
        model = self.encoder(
            str(labels["arm"]), length, pooler=True, head="none", dropout=tuning.dropout
        )
        config = tuning.config(pairs, {"seed": seed, **self.of["mnli"]})
        return training_cell(
            labels,
            lambda: Classify(Encoder(model), pairs.classes, tuning.dropout),
            {**model.to_json(), "objective": "classes"},
            pairs,
            config,
            {},
            parent=parent,
            clusters=lambda: pairs.clusters("test"),
            operations=_tuning_operations(model, config, tuning),
        )

    def _asked(self, labels: Labels, parent: Cell | None) -> Cell:
        """Fine-tuning on questions."""
        scale, tuning, seed = self.scale, self.scale.squad, int(labels["seed"])
        questions = self._questions(seed)
        model = self.encoder(
            str(labels["arm"]), scale.long_length, head="none", dropout=tuning.dropout
        )
        config = tuning.config(questions, {"seed": seed, **self.of["squad"]})
        return training_cell(
            labels,
            lambda: Span(Encoder(model)),
            {**model.to_json(), "objective": "span"},
            questions,
            config,
            {},
            metric="f1",
            parent=parent,
            clusters=lambda: questions.clusters("test"),
            operations=_tuning_operations(model, config, tuning),
        )


def left_plateau(outcome: Outcome) -> dict[str, Any]:
    """The first evaluation that is below `PLATEAU`; None if all are above."""
    below = [line["step"] for line in outcome.curve if line.get("nats", PLATEAU) < PLATEAU]
    return {"left_plateau_at": min(below, default=None)}


def _pretraining_operations(
    model: EncoderConfig, config: TrainConfig, windows: MaskedWindows
) -> float:
    """Of all updates, the longer windows included."""
    n, last = windows.seq_len, 0
    total = 0.0
    if windows.longer is not None:
        first, length, batch = windows.longer
        last = max(0, config.steps - first)
        total += last * batch * forward_operations(model, length, windows.masked(length))
    short = (config.steps - last) * config.batch
    total += short * forward_operations(model, n, windows.masked(n))
    return (1 + BACKWARD) * total


def _tuning_operations(model: EncoderConfig, config: TrainConfig, tuning: Tuning) -> float:
    """At most: as if every sequence had the largest length."""
    one = forward_operations(model, tuning.lengths[-1], 0)
    return (1 + BACKWARD) * float(config.steps) * config.batch * one


@cache
def forward_operations(model: EncoderConfig, n: int, masked: int) -> int:
    """Operations of products for one sequence, counted by PyTorch without numbers."""
    encoder = Encoder(model, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        states = encoder.states(torch.zeros(1, n, dtype=torch.long, device="meta"))
        if encoder.head is not None:
            encoder.head(states[:, :masked])
    return counter.get_total_flops()
