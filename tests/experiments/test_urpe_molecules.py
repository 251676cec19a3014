"""Graphormer with URPE: smoke runs, going on elsewhere, arms, refusals."""

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from everyformer.data.batch import Batch
from everyformer.data.molecules import MoleculeGraphs, Molecules
from everyformer.data.packs.molecule_excerpt import molecule_excerpt
from everyformer.data.packs.pack import write_pack
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.cell import conditions_hash
from everyformer.experiments.moving import export_runs, import_runs, runs_of
from everyformer.experiments.positions_picture import load_positions, positions_path
from everyformer.experiments.reproduce import reproduce
from everyformer.experiments.scores import load_scores, scores_path
from everyformer.experiments.urpe_molecules import URPE_QM9, URPE_ZINC, packs
from everyformer.experiments.urpe_molecules.cells import (
    ARMS,
    FLOOR,
    cells_of,
    floor_of,
    order_of,
)
from everyformer.experiments.urpe_molecules.sizes import SCALES, scale_of
from everyformer.layers.graphs.graphormer import GraphormerConfig, GraphormerModel
from everyformer.train import loop
from everyformer.train.config import TrainConfig
from everyformer.train.objectives.regress import Regress
from everyformer.train.schedule import learning_rate


@pytest.mark.parametrize("experiment", [URPE_ZINC, URPE_QM9], ids=lambda e: e.name)
def test_the_smoke_size_leaves_scores_curves_and_gains(
    experiment: Any, tmp_path: Path
) -> None:
    path = reproduce(experiment, "smoke", out=tmp_path / "res", runs=tmp_path / "runs")
    report = json.loads(path.read_text())
    arms = [result["labels"]["arm"] for result in report["results"]]
    assert arms == [*ARMS, *FLOOR]
    for result in report["results"]:
        more = result["more"]
        assert result["value_sampled"] == more["test"]["mae"]["mean_sampled"]
        assert {"mae", "mae_without_structure", "prediction"} <= more["test"].keys()
        assert [line["step"] for line in more["curve"] if "mae" in line] == [3, 6]
        assert ("C_by_distance" in more) == (result["labels"]["arm"] == "graphormer+urpe")
    scores = load_scores(scores_path(path))
    assert all(own["prediction"].shape == (32,) for own in scores.values())
    positions = load_positions(positions_path(path))
    (urpe,) = (own for name, own in positions.items() if "+urpe" in name)
    assert urpe["C by distance"].shape == (2, 41)
    assert path.with_suffix(".png").stat().st_size > 1000
    assert "Claims are not judged at size smoke." in path.with_suffix(".md").read_text()
    assert len({conditions_hash(result["settings"]) for result in report["results"]}) == 1


def test_a_run_goes_on_elsewhere_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at its first evaluation, exported, imported, and trained to its end."""
    only, size = ["*/graphormer+urpe/0"], "smoke"
    ways = {name: tmp_path / name for name in ("whole", "first", "second")}

    def run(way: str, **more: Any) -> dict[str, Any]:
        path = reproduce(
            URPE_ZINC, size, out=ways[way], runs=ways[way] / "runs", only=only, **more
        )
        return json.loads(path.read_text())

    whole = run("whole")["results"][0]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_is_over", lambda *_: True)  # pyright: ignore
        begun = run("first")
    assert [r["complete"] for r in begun["results"]] == [False]
    left = export_runs(
        begun, runs_of(ways["first"] / "runs", URPE_ZINC, size), tmp_path / "moved"
    )
    assert not left
    import_runs(tmp_path / "moved", runs_of(ways["second"] / "runs", URPE_ZINC, size))
    rest = run("second", resume=True)["results"][0]
    assert rest["more"]["steps"] == 6
    assert rest["value_sampled"] == whole["value_sampled"]


def test_the_order_of_cells_and_what_is_changed(tmp_path: Path) -> None:
    order = order_of("urpe-zinc")("reduced", [0, 1])
    names = ["/".join(map(str, labels.values())) for labels in order]
    assert names[:3] == [f"zinc12k/{arm}/0" for arm in ARMS]
    assert names[6:9] == [f"zinc12k/{arm}/0" for arm in FLOOR]
    assert names[-4:] == [
        f"zinc12k-{rate}/{arm}/0"
        for rate in ("half-rate", "twice-rate")
        for arm in list(ARMS)[:2]
    ]
    short = scale_of("urpe-zinc", "reduced", {"steps": 25_000, "dropout": 0.0})
    assert (short.train.steps, short.train.warmup) == (25_000, 2500)
    assert short.model.dropout == 0.0
    with pytest.raises(TrainingError, match="has no updates"):
        scale_of("urpe-zinc", "reduced", {"updates": 3})
    with pytest.raises(TrainingError, match="urpe-qm9 has no paper size"):
        scale_of("urpe-qm9", "paper", {})


def test_the_floor_is_as_large_as_graphormer() -> None:
    for scale in (SCALES["urpe-zinc"]["reduced"], SCALES["urpe-qm9"]["small"]):
        like = GraphormerModel(scale.model)
        wanted = sum(one.numel() for one in like.parameters())
        for kind in FLOOR:
            made = floor_of(kind, scale.model)
            assert made.layers == scale.model.layers
            assert made.parameters == pytest.approx(wanted, rel=0.06)


def test_schedules_of_the_public_code() -> None:
    """(update, rate) of the slim model at the size of the paper."""
    config = SCALES["urpe-zinc"]["paper"].train
    rates = [learning_rate(config, step) for step in (0, 39_999, 40_000, 220_000, 399_999)]
    assert rates == pytest.approx([5e-9, 2e-4, 2e-4, 1.000005e-4, 1.5555e-9], rel=1e-3)
    reduced = SCALES["urpe-zinc"]["reduced"].train
    assert learning_rate(reduced, 6000) == pytest.approx(4e-4)


def test_packs_that_are_missing_or_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="data pack zinc12k --from DIR"):
        cells_of("urpe-zinc")("reduced", [0], {})
    with pytest.raises(TrainingError, match="does not hold it"):
        cells_of("urpe-qm9")("reduced", [0], {}, tmp_path)
    pack = molecule_excerpt()
    header = {k: v for k, v in pack.header.items() if k not in ("format", "version")}
    del header["arrays"]
    write_pack(tmp_path / "zinc12k.pack.xz", header | {"name": "zinc12k"}, pack.arrays)
    with pytest.raises(FileFormatError, match="not be of the molecules that they name"):
        cells_of("urpe-zinc")("reduced", [0], {}, tmp_path)
    assert len(cells_of("urpe-zinc")("smoke", [0], {}, tmp_path)) == 6


def test_molecules_of_a_known_pack_are_not_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of QM9 would stand in the table of ZINC, and be judged."""
    pack = molecule_excerpt()
    header = {k: v for k, v in pack.header.items() if k not in ("format", "version")}
    del header["arrays"]
    place = tmp_path / "zinc12k.pack.xz"
    made = write_pack(place, header | {"name": "qm9-gap"}, pack.arrays)
    known = Mock(return_value={made.sha256: "qm9-gap"})
    monkeypatch.setattr(packs, "known_packs", known)
    told = r"zinc12k.pack.xz holds the pack 'qm9-gap'.*qm9-gap.pack.xz"
    with pytest.raises(FileFormatError, match=told):
        cells_of("urpe-zinc")("reduced", [0], {}, tmp_path)
    assert len(cells_of("urpe-zinc")("smoke", [0], {}, tmp_path)) == 6


def test_errors_are_those_of_the_units_of_the_target() -> None:
    graphs = MoleculeGraphs(molecule_excerpt(), max_steps=20)
    task = Molecules(graphs, 0)
    (draw,) = task.evaluation("test", 64, 0, 1, torch.device("cpu"))
    batch = task.batch("test", draw)
    config = GraphormerConfig(layers=1, dim=8, heads=2, ffn=8)
    objective = Regress(GraphormerModel(config), 5.0, 2.0).eval()
    with torch.no_grad():
        objective.encoder.read_out.weight.zero_()
        objective.encoder.read_out.bias.fill_(0.5)
        (loss,) = objective(batch)
        scores = objective.scores(batch)
    wanted = (6.0 - batch.labels).abs() * batch.weights
    assert float(loss) == pytest.approx(float(wanted.sum()) / 2.0)
    assert torch.equal(scores["mae"], (6.0 - batch.labels).abs())
    with pytest.raises(TrainingError, match="reads graphs"):
        objective(Batch(batch.tokens, batch.labels, batch.weights))
    with pytest.raises(TrainingError, match="nothing to learn"):
        Regress(GraphormerModel(config), 0.0, 0.0)
    assert math.isfinite(TrainConfig(steps=1, batch=1, lr=1.0, precision="tf32").lr)
