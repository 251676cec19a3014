"""The ceiling from receptive fields, and sparsity levels, as the specification counts."""

from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
import torch

from everyformer.data.batch import Draw
from everyformer.data.task import IGNORED
from everyformer.errors import TrainingError
from everyformer.experiments.cell import Surroundings, training_cell
from everyformer.experiments.expected import verdict
from everyformer.experiments.registry import EXPERIMENTS
from everyformer.experiments.sparse_copying.ceiling import (
    ceiling,
    heard,
    layer_masks,
    sparsity,
)
from everyformer.experiments.sparse_copying.cells import cell, sinusoids, sparse_encoder
from everyformer.experiments.sparse_copying.task import Copying
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.layers.sparse_attention import Configuration
from everyformer.patterns import dense, fixed, star, strided
from everyformer.patterns.pattern import Pattern
from everyformer.train.config import TrainConfig
from everyformer.train.objectives.labels import Labels

TASK = Copying(256, 128, 0)
CHANCE = 1 / 128


def test_what_is_copied() -> None:
    draw = Draw(torch.arange(-1, 19), 12)
    tokens, labels, weights, *_ = Copying(12, 7, 0).batch("train", draw)
    assert torch.equal(labels[:, 7:], tokens[:, 1:6])
    assert (labels[:, :7] == IGNORED).all()
    assert torch.equal(weights[1:], (labels[1:] != IGNORED).float())
    assert (weights[0] == 0).all(), "filling"
    assert (tokens[:, 0] == 0).all()
    assert (tokens[:, 6:] == 7).all(), "the second half is masked"
    with pytest.raises(TrainingError, match="even number"):
        Copying(9, 7, 0)


@pytest.mark.parametrize(
    ("pattern", "configuration", "layers", "reached"),
    [
        (strided(256, 16), "union", 1, 1.0),  # 128 is a multiple of 16
        (strided(256, 16), "multihead", 1, 1.0),
        (strided(256, 16), "sequential", 1, 0.0),
        (strided(256, 16), "sequential", 2, 1.0),
        (strided(256, 15), "union", 1, 0.0),  # and none of 15
        (strided(256, 15), "multihead", 1, 0.0),
        (fixed(256, 16), "union", 1, 8 / 127),
        (fixed(256, 16), "sequential", 2, 1.0),
        (star(256, 16), "sequential", 2, 1.0),
        (dense(256), "sequential", 1, 1.0),
    ],
)
def test_ceilings(
    pattern: Pattern, configuration: Configuration, layers: int, reached: float
) -> None:
    found = ceiling(TASK, pattern, configuration, layers)
    assert found == pytest.approx(reached + (1 - reached) * CHANCE)


def test_nobody_beats_the_ceiling_by_reading_further() -> None:
    """What a random network with the pattern cannot see, it does not depend on."""
    torch.manual_seed(0)
    pattern, layers = fixed(16, 4), 1
    config = EncoderConfig(9, 16, dim=8, layers=layers, heads=2, ffn=8, norm="pre")
    model = sparse_encoder(config, pattern, "union").double()
    fields = heard(layer_masks(pattern, "union", layers))
    tokens = torch.randint(8, (1, 16))
    for j in range(16):
        moved = tokens.clone()
        moved[0, j] = (moved[0, j] + 3) % 8
        with torch.no_grad():
            changed = (model(moved) - model(tokens)).abs().amax(-1)[0] > 1e-12
        assert np.array_equal(changed.numpy(), fields[:, j])


@pytest.mark.parametrize(
    ("pattern", "configuration", "per_cent"),
    [
        (strided(256, 16), "union", 87.61),
        (strided(256, 16), "sequential", 93.61),
        (strided(256, 16), "multihead", 93.61),
        (fixed(256, 16), "union", 87.89),
        (fixed(256, 16), "sequential", 93.57),
        (star(256, 16), "sequential", 86.38),
        (fixed(256, 19), "union", 88.01),
    ],
)
def test_sparsity(pattern: Pattern, configuration: Configuration, per_cent: float) -> None:
    assert round(100 * sparsity(pattern, configuration), 2) == per_cent


def test_positions_start_as_waves() -> None:
    waves = sinusoids(32, 8)
    inner = waves @ waves.T
    assert torch.allclose(inner.diagonal(2), inner.diagonal(2)[0].expand(30), atol=1e-5)
    assert not torch.allclose(inner.diagonal(2)[0], inner.diagonal(9)[0], atol=1e-2)


def test_a_cell_at_chance_is_trained_shorter() -> None:
    short, long = (
        cell("paper", name, "union", 1, 0, {}).settings["train"]["steps"]
        for name in ("strided, w = 15", "strided")
    )
    assert 4 * short == long


def test_what_is_harder_is_trained_longer_and_may_be_changed() -> None:
    deep, shallow, mine = (
        cell("paper", "fixed", "union", layers, 0, changes).settings["train"]
        for layers, changes in ((4, {}), (3, {}), (4, {"batch": 64}))
    )
    assert (deep["batch"], deep["steps"]) == (128, 8000)
    assert (shallow["batch"], shallow["steps"]) == (32, 4000)
    assert (mine["batch"], mine["steps"]) == (64, 8000)


def _labels(config: EncoderConfig, pattern: Pattern) -> Labels:
    return Labels(sparse_encoder(config, pattern, "union"))


def test_a_network_that_hears_too_much_is_noticed() -> None:
    """A dense one under the name of a pattern that reaches no source must not agree."""
    torch.manual_seed(0)
    task, named = Copying(8, 4, 0, evaluated=512), strided(8, 3)
    config = EncoderConfig(5, 8, 32, 1, 4, 32, norm="pre", head="untied", labels=4)
    train = TrainConfig(steps=80, batch=32, lr=1e-2, warmup=10, clip=1.0)
    labels = {"pattern": "strided, w = 3", "configuration": "union", "layers": 1, "seed": 0}
    entry = EXPERIMENTS["sparse-copying"].expected.of(labels)
    words: list[str] = []
    for used in (named, dense(8)):
        build = partial(_labels, config, used)
        more = {"ceiling": ceiling(task, named, "union", 1)}
        found = training_cell(labels, build, {}, task, train, more).run(Surroundings())
        words.append(verdict(entry, {"labels": labels, **asdict(found)}, [], "small"))
    assert words == ["agrees (small)", "DIFFERS (small)"]


def test_every_cell_is_held_to_its_ceiling() -> None:
    """And those with four layers that learn to copy, by the paper, must do so."""
    experiment = EXPERIMENTS["sparse-copying"]
    for found in experiment.cells("small", [0], {}):
        entry = experiment.expected.of(found.labels)
        assert entry is not None
        asked = {"under_ceiling": 3}
        if found.labels["layers"] == 4 and found.labels["pattern"] in ("strided", "fixed"):
            asked |= {"at_least": 0.99}
        assert entry["target"] == asked
