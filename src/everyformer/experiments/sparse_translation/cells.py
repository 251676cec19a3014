"""`sparse-translation`: which sparse pattern is best for translation?

Yun et al. 2020 (sparse): encoder-decoders of 6 + 6 blocks on WMT18 en-cs, whose
self-attention is STRIDED, FIXED, STAR or RANDOM. Here every arm is trained on the same
paragraphs in the same order, from the same weights; attention to the source is dense.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from everyformer.data.translation import Translations
from everyformer.experiments.cell import Cell, Labels, Size, training_cell
from everyformer.experiments.changes import Settable
from everyformer.experiments.rates import at_rate, split_rate
from everyformer.experiments.sparse_translation.arms import SIDES, TranslationArm
from everyformer.experiments.sparse_translation.packs import pairs_of
from everyformer.experiments.sparse_translation.plan import order
from everyformer.experiments.sparse_translation.sizes import SCALES, Scale
from everyformer.experiments.sparse_translation.texts import translated
from everyformer.layers.models.encoder_decoder import (
    EncoderDecoderConfig,
    EncoderDecoderModel,
)
from everyformer.train.config import TrainConfig
from everyformer.train.loop import Outcome
from everyformer.train.objective import Objective
from everyformer.train.objectives.translate import Translate
from everyformer.train.throughput import BACKWARD

SETTABLE = Settable(
    "sparse-translation",
    model=("dim", "encoder_layers", "decoder_layers", "heads", "ffn", "dropout"),
    own=("translated", "smoothing", "evaluated"),
    told="translated, smoothing, evaluated",
)


def cells(
    size: Size, seeds: Sequence[int], changes: Mapping[str, Any], data: Path | None = None
) -> list[Cell]:
    """All cells in the order of `plan.order`; those of a seed share their pairs."""
    scale = SETTABLE.change(SCALES[size], changes)
    pack = pairs_of(size, data, scale.pieces)
    words = pack.vocabulary
    model = replace(
        scale.model,
        vocab_size=words + -words % scale.multiple,
        max_len=scale.lengths[-1],
    )
    task = cache(
        partial(Translations, pack, lengths=scale.lengths, evaluated=scale.evaluated)
    )
    made: list[Cell] = []
    for labels in order(size, seeds):
        density, name = str(labels["density"]), str(labels["arm"])
        seed = int(labels["seed"])
        own = replace(scale, train=at_rate(scale.train, split_rate(density)[1]))
        draw = seed if name == "random" else 0
        arm = TranslationArm(name, scale.widths.get(name, 0), model, draw)
        made.append(_cell(labels, arm, own, task(seed)))
    return made


def _cell(labels: Labels, arm: TranslationArm, scale: Scale, task: Translations) -> Cell:
    """The complete config of one run."""
    config = replace(scale.train, seed=int(labels["seed"]))
    model = arm.model
    described = {**model.to_json(), "mixers": {"arm": arm.name, "width": arm.width}}
    described |= {"objective": "translation", "smoothing": scale.smoothing}
    described["translated"] = scale.translated
    work = operations(model, config)

    def build() -> Translate:
        seed = torch.initial_seed()
        encoder, decoder = (arm.mixers(side) for side in SIDES)
        made = EncoderDecoderModel(model, encoder_mixers=encoder, decoder_mixers=decoder)
        # The mixers are made first: begin anew, so that arms have the same weights.
        torch.manual_seed(seed)
        made.reset_parameters()
        return Translate(made, scale.smoothing)

    def at_end(objective: Objective) -> dict[str, np.ndarray]:
        return translated(cast("Translate", objective), task, scale.translated)

    def derived(outcome: Outcome) -> dict[str, Any]:
        news = outcome.made.get("news_nats")
        if news is None or not len(news):
            return {}
        return {"news": {"nats": float(news.mean()), "pairs": len(news)}}

    sizes = task.sizes("test")
    more = {
        "density": arm.density(),
        "density_of_texts": arm.density_of(*sizes),
        "width": arm.width,
        "operations": work,
        "tokens": config.steps * config.batch,
    }
    return training_cell(
        labels,
        build,
        described,
        task,
        config,
        more,
        metric="nats",
        clusters=lambda: task.clusters("test"),
        operations=work,
        derived=derived,
        at_end=at_end,
    )


def operations(model: EncoderDecoderConfig, config: TrainConfig) -> float:
    """Of all updates, forward and backward, filling included; attention has all pairs.

    A source token costs 2 L (4 d^2 + 2 d f + 2 n d), a target token 4 d^2 + 2 n d more a
    block and 2 d V for its logits. Half of a batch are target tokens.
    """
    d, n = model.dim, model.max_len
    attention = 4 * d * d + 2 * n * d
    source = model.encoder_layers * (attention + 2 * d * model.ffn)
    target = model.decoder_layers * (2 * attention + 2 * d * model.ffn)
    pair = 2 * (source + target + d * model.vocab_size)
    return (1 + BACKWARD) * float(config.steps) * config.batch / 2 * pair
