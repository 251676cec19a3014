"""`sparse-glue`: cells, densities, claims with negative controls, and a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.experiments.test_sparse_lm import put

from everyformer.data.glue_metrics import matthews
from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.pack import write_pack
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.claims import judge, load_claims
from everyformer.experiments.report import load_report
from everyformer.experiments.reproduce import reproduce
from everyformer.experiments.scores import load_scores, scores_path
from everyformer.experiments.sparse_arms import Arm
from everyformer.experiments.sparse_glue import SPARSE_GLUE
from everyformer.experiments.sparse_glue.cells import PATTERNS, cells, share_seen
from everyformer.experiments.sparse_glue.plan import order
from everyformer.experiments.sparse_glue.sizes import SCALES, WIDTHS

PACKAGE = "everyformer.experiments.sparse_glue"


ARMS = {
    name: Arm(PATTERNS.get(name, name), width, 256, causal=False)
    for name, width in WIDTHS.items()
}


def test_random_leaves_short_sequences_what_strided_does() -> None:
    """Else it would be worse for a reason that is not its randomness."""
    sizes = np.array([20, 39, 80])
    seen = {name: 100 * share_seen(arm, sizes) for name, arm in ARMS.items()}
    assert seen["random"] == pytest.approx(seen["strided-union"])
    assert min(seen.values()) > 40
    one, two = (ARMS["random"].parts(layer)[0].mask() for layer in (0, 1))
    assert not np.array_equal(one, two), "a draw for each layer"
    assert ARMS["random"].to_json()["draw"] == 0


def test_arms_have_one_density_and_the_core_comes_first() -> None:
    densities = {name: 100 * arm.density(6) for name, arm in ARMS.items()}
    assert densities.pop("dense") == 100.0
    assert 12.0 < min(densities.values()) < max(densities.values()) < 13.0
    found = [tuple(labels.values()) for labels in order("reduced", [0])]
    assert len(set(found)) == len(found) == 12 + 90
    assert {task for task, *_ in found[:12]} == {"mlm", "mnli"}
    scale = SCALES["reduced"]
    assert (scale.encoder.max_len, scale.masked.batch) == (256, 128)
    assert (scale.encoder.layers, scale.encoder.norm, scale.masked.lr) == (6, "pre", 1e-3)


def test_a_smoke_run_from_excerpts_to_the_report(tmp_path: Path) -> None:
    path = reproduce(
        SPARSE_GLUE, "smoke", out=tmp_path / "out", runs=tmp_path / "runs",
        only=["mlm/star/0/0", "cola/star/*", "sts-b/star/*"],
    )  # fmt: skip
    results = {r["labels"]["task"]: r for r in load_report(path)["results"]}
    assert {*results} == {"mlm", "cola", "sts-b"}
    cola = load_scores(scores_path(path))["cola/star/0/0"]
    assert {*cola} == {"accuracy", "prediction", "label", "clusters"}
    said = matthews(cola["prediction"], cola["label"])
    assert results["cola"]["value_sampled"] == pytest.approx(said)
    assert results["cola"]["more"]["seen"] > results["mlm"]["more"]["density"]
    assert results["sts-b"]["settings"]["parent"]["name"] == "mlm/star/0/0"
    told = path.with_suffix(".md").read_text()
    assert "Means over fine-tunings" in told
    assert "`random` has as many connections among the first m tokens" in told
    assert "Pearson; excerpt-glue" in told


def test_the_relay_of_star_is_the_first_token() -> None:
    found = {cell.name: cell for cell in cells("smoke", [0], {"mnli.lr": 3e-4})}
    star = found["mlm/star/0/0"].settings["model"]["mixers"]
    assert star["arm"] == "star-first"
    assert not star["causal"]
    assert found["mnli/star/0/0"].parent is found["mlm/star/0/0"]
    assert found["mnli/star/0/0"].settings["train"]["lr"] == 3e-4
    assert found["cola/star/0/0"].settings["train"]["lr"] == 1e-4


RIGHT = {
    "dense": 0.66, "strided-union": 0.62, "strided-multihead": 0.61, "fixed-union": 0.6,
    "star": 0.57, "random": 0.5,
}  # fmt: skip


def verdicts(right: Mapping[str, float], seeds: int = 3) -> list[str]:
    generator = np.random.default_rng(4)
    results: list[dict[str, Any]] = []
    scores: dict[str, dict[str, np.ndarray]] = {}
    for task in ("mlm", "mnli"):
        for arm, share in right.items():
            for seed in range(seeds):
                values = share + 0.05 * generator.normal(size=400)
                values += 0.001 * generator.normal()
                said = {"accuracy": {"mean_sampled": float(values.mean())}}
                labels = {"task": task, "arm": arm, "tuning": 0, "seed": seed}
                more = {"test": said, "validation": said}
                results.append({"labels": labels, "complete": True, "more": more})
                kept = {"accuracy": values, "clusters": np.arange(400) // 20}
                scores[f"{task}/{arm}/0/{seed}"] = kept
    return [j.verdict for j in judge(load_claims(PACKAGE), results, scores, "reduced")]


def test_claims_hold_where_they_should_and_nowhere_else() -> None:
    assert verdicts(RIGHT) == ["holds", "holds"]
    assert verdicts(RIGHT | {"random": 0.7}) == ["contradicted", "holds"]
    assert verdicts(RIGHT | {"random": 0.57})[0] == "undecided"
    assert verdicts(RIGHT | {"star": 0.65})[1] == "contradicted"
    assert verdicts(RIGHT | {"dense": 0.45}) == ["not informative"] * 2
    assert verdicts(RIGHT, seeds=2) == ["drawn, 2 seeds"] * 2


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no folder was given"):
        cells("reduced", [0], {})
    put(tmp_path, excerpt("enwiki-wp"), "enwiki-wp")
    with pytest.raises(TrainingError, match=r"does not hold the packs nli, glue, which"):
        cells("small", [0], {}, tmp_path)
    put(tmp_path, excerpt("nli"), "nli")
    glue = excerpt("glue")
    path = put(tmp_path, glue, "glue")
    with pytest.raises(FileFormatError, match="--size reduced is about enwiki-wp-48m"):
        cells("reduced", [0], {}, tmp_path)
    path.unlink()
    keys = ("name", "licence", "sources", "counts")
    other = {**glue.header["tokeniser"], "sha256": "0" * 64}
    header = {key: glue.header[key] for key in keys} | {"tokeniser": other}
    write_pack(path, header, glue.arrays)
    with pytest.raises(FileFormatError, match="token ids mean other words"):
        cells("smoke", [0], {}, tmp_path)
    with pytest.raises(TrainingError, match=r"no setting squad\.lr"):
        cells("smoke", [0], {"squad.lr": 1.0})
    with pytest.raises(TrainingError, match="matches none of the 16 cells"):
        reproduce(
            SPARSE_GLUE, "smoke", out=tmp_path / "out", runs=tmp_path / "runs",
            only=["qnli/*"],
        )  # fmt: skip
