"""`urpe-wikitext`: its cells, its texts, its gate, and the smoke size from end to end."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests.data.excerpt_packs import excerpt_packs

from everyformer.data.packs.excerpt import words_excerpt
from everyformer.data.packs.molecule_excerpt import molecule_excerpt
from everyformer.data.packs.pack import write_pack
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments import needed_packs
from everyformer.experiments.cell import Surroundings
from everyformer.experiments.claims import gate_failure, load_claims
from everyformer.experiments.needed_packs import known_packs
from everyformer.experiments.reproduce import reproduce
from everyformer.experiments.scores import Runs, load_scores, scores_path
from everyformer.experiments.urpe_wikitext import URPE_WIKITEXT
from everyformer.experiments.urpe_wikitext.cells import cells, operations
from everyformer.experiments.urpe_wikitext.packs import COUNTS, texts
from everyformer.experiments.urpe_wikitext.plan import order
from everyformer.experiments.urpe_wikitext.sizes import SCALES


def test_smoke_runs_resumes_and_draws(tmp_path: Path) -> None:
    def run(*, resume: bool = False) -> Path:
        return reproduce(
            URPE_WIKITEXT, "smoke", out=tmp_path, runs=tmp_path / "runs", resume=resume,
            only=["*/xl/0", "*/xl+urpe/0"], changes={"log_every": 1},
        )  # fmt: skip

    path = run()
    results = json.loads(path.read_text())["results"]
    assert [r["labels"]["arm"] for r in results] == ["xl", "xl+urpe"]
    one, two = (r["more"] for r in results)
    first, second = one["curve"][0], two["curve"][0]
    assert first["step"] == second["step"] == 1
    assert first["loss"] == second["loss"], "C = 1 until the first update"
    assert two["parameters"] - one["parameters"] == 2 * 32
    for result in results:
        more = result["more"]
        nats = more["test"]["nats"]["mean_sampled"]
        assert result["value_sampled"] == pytest.approx(np.exp(nats))
        assert set(more["perplexity"]) == {"nats", "long", "validation"}
    scores = load_scores(scores_path(path))
    assert len(scores["excerpt/xl/0"]["nats"]) == 512 // 64
    assert path.with_suffix(".png").is_file()
    assert path.with_suffix(".positions.npz").is_file()
    assert "a memory of 16 x 4" in path.with_suffix(".md").read_text()
    before = path.read_text()
    run(resume=True)
    assert json.loads(path.read_text())["results"] == json.loads(before)["results"]


def test_arms_of_a_seed_read_the_same_and_begin_with_the_same_weights() -> None:
    made = cells("smoke", (0, 1), {})
    assert [cell.name for cell in made[:3]] == [
        "excerpt/xl/0", "excerpt/xl+urpe/0", "excerpt/xl+urpe-layer/0",
    ]  # fmt: skip
    tasks = [cell.settings["task"] for cell in made]
    assert tasks[0] == tasks[1] == tasks[2] != tasks[3]


def test_the_reduced_size_is_the_specification() -> None:
    core = [tuple(one.values()) for one in order("reduced", (0, 1, 2))][:6]
    assert core == [("enwiki-words", a, s) for s in range(3) for a in ("xl", "xl+urpe")]
    scale = SCALES["reduced"]["enwiki-words"]
    model: dict[str, Any] = scale.model.to_json() | {"vocab_size": 33_280}
    assert (model["layers"], model["dim"], model["heads"], model["ffn"]) == (
        8,
        384,
        6,
        1920,
    )
    assert scale.train.batch * scale.length == 8192
    model["cutoffs"] = ()
    whole = type(scale.model)(**model)
    token = operations(whole, scale.train, scale) / (8000 * 8192)
    assert token == pytest.approx(197e6, rel=0.15)
    paper = SCALES["paper"]["wikitext-103"]
    assert (paper.train.lr, paper.train.batch, paper.length) == (2.5e-4, 60, 150)


def test_packs_that_are_missing_or_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrainingError, match=r"no folder was given.*data pack enwiki-words"):
        texts("reduced", None)
    with pytest.raises(TrainingError, match=r"holds neither"):
        texts("reduced", tmp_path)
    with pytest.raises(TrainingError, match="reads WikiText-103"):
        texts("paper", tmp_path)
    pack = words_excerpt()
    keys = ("licence", "tokeniser", "sources", "counts")
    header = {"name": "wikitext-2", **{key: pack.header[key] for key in keys}}
    place = tmp_path / "wikitext-2.pack.xz"
    write_pack(place, header, pack.arrays)
    with pytest.raises(
        FileFormatError, match=r"validation text .* that of WikiText-2 217,646"
    ):
        texts("small", tmp_path)
    place.unlink()
    filled = {s: np.zeros(n, np.uint16) for s, n in COUNTS.items()}
    write_pack(place, header, {**pack.arrays, **filled})
    texts("small", tmp_path)
    with pytest.raises(FileFormatError, match="not be of the texts that they name"):
        texts("reduced", tmp_path)
    place.unlink()
    (pieces,) = [p for p in excerpt_packs(tmp_path / "wp") if "enwiki" in p.name]
    pieces.rename(tmp_path / "enwiki-words.pack.xz")
    with pytest.raises(FileFormatError, match=r"holds WordPieces.*data pack enwiki-words`"):
        texts("reduced", tmp_path)
    (tmp_path / "enwiki-words.pack.xz").unlink()
    molecules = molecule_excerpt()
    header = {"name": "zinc12k", **{key: molecules.header[key] for key in keys}}
    write_pack(tmp_path / "enwiki-words.pack.xz", header, molecules.arrays)
    with pytest.raises(FileFormatError, match="'zinc12k' has no arrays train"):
        texts("reduced", tmp_path)
    for name in ("train", "valid", "test"):
        (tmp_path / f"wiki.{name}.tokens").write_text(" \n = A = \n \n <unk> b \n")
    with pytest.raises(FileFormatError, match=r"5 different words.*267,735"):
        texts("paper", tmp_path)
    for place in tmp_path.glob("*.pack.xz"):
        place.unlink()
    header = {"name": "wikitext-2", **{key: pack.header[key] for key in keys}}
    made = write_pack(tmp_path / "enwiki-words.pack.xz", header, pack.arrays | filled)
    known = Mock(return_value={made.sha256: "wikitext-2"})
    monkeypatch.setattr(needed_packs, "known_packs", known)
    with pytest.raises(FileFormatError, match=r"words.pack.xz holds the pack 'wikitext-2'"):
        texts("reduced", tmp_path)
    monkeypatch.undo()
    assert set(known_packs("everyformer.experiments.urpe_wikitext").values()) <= {
        "enwiki-words",
        "enwiki-words-12m",
        "wikitext-2",
    }
    with pytest.raises(TrainingError, match="no setting depth"):
        cells("smoke", (0,), {"depth": 3})


def test_evaluations_follow_the_segments_of_training() -> None:
    """Distances that were not trained are never read."""
    task = cells("smoke", (0,), {"length": 8, "places": 12})[0].settings["task"]
    plain, long = task["readings"]
    assert (plain["length"], plain["places"], plain["clamp"]) == (8, 12, None)
    assert (long["places"], long["clamp"]) == (32, 19)


def test_the_gate_is_a_perplexity_of_the_validation_text() -> None:
    gate = load_claims("everyformer.experiments.urpe_wikitext").gates[0]

    def shut(*perplexities: float) -> str | None:
        results = [
            {
                "labels": {"text": "enwiki-words", "arm": "xl", "seed": seed},
                "complete": True,
                "more": {"validation": {"nats": {"mean_sampled": float(np.log(ppl))}}},
            }
            for seed, ppl in enumerate(perplexities)
        ]
        return gate_failure(gate, Runs("arm", results, {}))

    assert shut(80.0, 119.9) is None
    assert "4.79" in (shut(80.0, 120.5) or "")
    assert "was not run" in (shut() or "")


@pytest.mark.gpu
def test_recorded_updates_and_evaluations_are_those_of_python(tmp_path: Path) -> None:
    """On a GPU, compiled, in bf16, with dropout: memory moves on within the graph.

    The second evaluation replays what the first has recorded, with other weights.
    """
    changes = {"compile": True, "precision": "bf16", "dropout": 0.1, "steps": 20}
    changes |= {"lr": 1e-2, "evaluate_every": 10, "checkpoint_every": 0}
    found: list[list[float]] = []
    for record in (False, True):
        own = cells("smoke", (0,), {**changes, "record": record})
        result = own[1].run(Surroundings(tmp_path / str(record)))
        lines = result.more["curve"]
        told = [line["nats"] for line in lines if "nats" in line]
        told += [line["loss"] for line in lines if "loss" in line]
        found.append(told + [s["mean_sampled"] for s in result.more["test"].values()])
    assert found[1] == pytest.approx(found[0], rel=2e-3)
    assert found[0][1] < found[0][0] - 0.1, "the weights have changed in between"
