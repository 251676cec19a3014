"""On a GPU: graphs searched there, and updates of Graphormer as one CUDA graph."""

from typing import Any

import pytest
import torch

from everyformer.data.molecules import MoleculeGraphs, Molecules
from everyformer.data.packs.molecule_excerpt import molecule_excerpt
from everyformer.layers.graphs.graphormer import GraphormerConfig, GraphormerModel
from everyformer.train.config import TrainConfig
from everyformer.train.loop import Outcome, train
from everyformer.train.objectives.regress import Regress

pytestmark = pytest.mark.gpu
STILL: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "input_dropout": 0.0}


def run(model: dict[str, Any], **settings: Any) -> Outcome:
    config = GraphormerConfig("urpe", layers=3, dim=32, heads=4, ffn=32, **model)
    graphs = MoleculeGraphs(molecule_excerpt())
    return train(
        lambda: Regress(GraphormerModel(config)),
        Molecules(graphs, 0),
        TrainConfig(
            steps=12, batch=16, lr=1e-3, table_lr=10.0, clip=5.0, log_every=1, **settings
        ),
    )


def losses(outcome: Outcome) -> list[float]:
    return [line["loss"] for line in outcome.curve if "loss" in line]


def test_graphs_are_those_of_the_cpu() -> None:
    graphs = MoleculeGraphs(molecule_excerpt())
    here, there = (graphs.on(torch.device(name))[0] for name in ("cpu", "cuda"))
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other.cpu())


@pytest.mark.parametrize(
    "more",
    [{}, {"compile": True}, {"precision": "tf32"}, {"compile": True, "precision": "tf32"}],
)
def test_recorded_updates_are_those_of_python(more: dict[str, Any]) -> None:
    """A number read from the device would end the recording with an error."""
    plain = losses(run(STILL))
    assert losses(run(STILL, record=True, **more)) == pytest.approx(plain, rel=0.02)
    assert plain[-1] < plain[0]


def test_dropped_weights_differ_between_replays_and_repeat_with_the_seed() -> None:
    """Two recorded runs with dropout have the same losses; another seed has others."""
    one, two = (losses(run({}, record=True)) for _ in range(2))
    assert one == pytest.approx(two, rel=1e-6)
    assert losses(run({}, record=True, seed=1)) != one
    assert one == pytest.approx(losses(run({}, record=False)), rel=1e-3)


def test_the_fused_operator_trains_too() -> None:
    plain = losses(run(STILL))
    fused = losses(run(STILL | {"fused": True}, record=True))
    assert fused == pytest.approx(plain, rel=0.01)
