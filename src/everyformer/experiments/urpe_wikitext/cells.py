"""`urpe-wikitext`: does a gain by distance help a language model with memory?

Luo et al. 2022 (slides, Table 1): Transformer-XL on WikiText-103 has a test perplexity of
24.0, and 23.2 with URPE. Here the same stack is trained with and without the gain, on the
same text in the same order from the same weights, and read twice: with the memory of
training, and with a longer one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from everyformer.data.packs.pack import Pack
from everyformer.data.streams import Reading, Streams
from everyformer.experiments.cell import Cell, Labels, Size, training_cell
from everyformer.experiments.changes import Settable
from everyformer.experiments.perplexity import perplexity
from everyformer.experiments.rates import at_rate, split_rate
from everyformer.experiments.urpe_wikitext.packs import texts
from everyformer.experiments.urpe_wikitext.plan import ARMS, order
from everyformer.experiments.urpe_wikitext.sizes import SCALES, Scale
from everyformer.layers.models.transformer_xl import TransformerXLConfig, TransformerXLModel
from everyformer.train.config import TrainConfig
from everyformer.train.loop import Outcome
from everyformer.train.objectives.next_word import NextWord
from everyformer.train.throughput import BACKWARD

SETTABLE = Settable(
    "urpe-wikitext",
    model=("dim", "layers", "heads", "head_dim", "ffn", "dropout", "attention_dropout"),
    own=("length", "places", "most"),
    told="length, places, most of segments, memory and evaluations",
)


def cells(
    size: Size, seeds: Sequence[int], changes: Mapping[str, Any], data: Path | None = None
) -> list[Cell]:
    """The cells of all texts that are there, in the order of `plan.order`."""
    found = texts(size, data)
    made: list[Cell] = []
    streams = cache(Streams)
    for labels in order(size, seeds):
        text, rate = split_rate(str(labels["text"]))
        if text not in found:
            continue
        scale = with_changes(SCALES[size][text], changes)
        scale = replace(scale, train=at_rate(scale.train, rate))
        made.append(_cell(labels, scale, found[text], streams))
    return made


def with_changes(scale: Scale, changes: Mapping[str, Any]) -> Scale:
    """A scale with what `--set` changes.

    Raises:
        TrainingError: If a name is unknown.
    """
    made = SETTABLE.change(scale, changes)
    return replace(made, readings=tuple(_fitting(one, made) for one in made.readings))


def _fitting(reading: Reading, scale: Scale) -> Reading:
    """A reading of a model that knows the distances of its training alone."""
    if reading.clamp is None:
        return replace(reading, length=scale.length, places=scale.places)
    last = scale.length + scale.places - 1
    return replace(reading, clamp=min(reading.clamp, last))


def _cell(
    labels: Labels, scale: Scale, pack: Pack, streams_of: Callable[..., Streams]
) -> Cell:
    """The complete config of one run; runs of one seed read the same streams."""
    arm, seed = str(labels["arm"]), int(labels["seed"])
    config = replace(scale.train, seed=seed)
    words = pack.vocabulary
    model = replace(
        scale.model,
        vocab_size=words + -words % scale.multiple,
        max_len=scale.length + scale.places,
        gain=ARMS[arm],
    )
    streams = streams_of(pack, config.batch, scale.length, seed, scale.readings, scale.most)
    described = {**model.to_json(), "gain": "by arm", "mixers": arm}
    described |= {"places": scale.places, "objective": "next word"}

    def build() -> NextWord:
        return NextWord(
            TransformerXLModel(model), streams=config.batch, places=scale.places,
            readings=scale.readings,
        )  # fmt: skip

    work = operations(model, config, scale)
    return training_cell(
        labels,
        build,
        described,
        streams,
        config,
        {"operations": work, "words": config.steps * config.batch * scale.length},
        metric="nats",
        clusters=lambda: streams.clusters("test"),
        operations=work,
        derived=perplexities,
        shown=lambda outcome: perplexity(outcome.test["nats"]),
    )


def perplexities(outcome: Outcome) -> dict[str, Any]:
    """Of all texts and readings."""
    found = {name: perplexity(score)[0] for name, score in outcome.test.items()}
    found["validation"] = perplexity(outcome.validation["nats"])[0]
    return {"perplexity": found}


def operations(model: TransformerXLConfig, config: TrainConfig, scale: Scale) -> float:
    """Of all updates, forward and backward, by the formula of the layers.

    Keys and values of the memory are computed anew, so they count n_k / n times; the
    products of a token with keys, positions and values are three of n_k.
    """
    inner = model.heads * model.head_dim
    keys = scale.length + scale.places
    linear = model.dim * inner * (2 + 2 * keys / scale.length) + 2 * model.dim * model.ffn
    token = model.layers * (2 * linear + 6 * keys * inner)
    token += 2 * model.dim * model.vocab_size
    return (1 + BACKWARD) * float(config.steps) * config.batch * scale.length * token
