"""`sparse-lm`: densities, cells, claims with their negative controls, and a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from everyformer.data.packs.excerpt import excerpt, words_excerpt
from everyformer.data.packs.pack import Pack, pack_path, write_pack
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments import needed_packs
from everyformer.experiments.arrays import save_arrays
from everyformer.experiments.cell import Cell
from everyformer.experiments.claims import judge, load_claims
from everyformer.experiments.rates import at_other_rates
from everyformer.experiments.report import load_report, new_report, results_path
from everyformer.experiments.reproduce import reproduce, show
from everyformer.experiments.scores import load_scores, scores_path
from everyformer.experiments.sparse_arms import Arm
from everyformer.experiments.sparse_lm import SPARSE_LM
from everyformer.experiments.sparse_lm import packs as packs_module
from everyformer.experiments.sparse_lm.cells import cells
from everyformer.experiments.sparse_lm.conditions import CAUSAL_STAR
from everyformer.experiments.sparse_lm.plan import order
from everyformer.experiments.sparse_lm.sizes import SCALES
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.patterns import random, strided

PACKAGE = "everyformer.experiments.sparse_lm"
DENSITIES = {
    "100": {"dense": 100.0},
    "13": {
        "strided-union": 12.7, "strided-multihead": 13.0, "strided-sequential": 13.0,
        "fixed-union": 12.5, "fixed-multihead": 13.6, "fixed-sequential": 13.6,
        "star": 13.2, "star-first": 13.2, "random": 13.2,
    },
    "26": {"strided-union": 25.2, "fixed-union": 26.5, "star": 26.4, "random": 26.0},
}  # fmt: skip
"""Per cent of the allowed pairs at n = 256."""


def put(folder: Path, pack: Pack, name: str) -> Path:
    keys = ("name", "licence", "tokeniser", "sources", "counts")
    folder.mkdir(parents=True, exist_ok=True)
    path = pack_path(folder, name)
    write_pack(path, {key: pack.header[key] for key in keys}, pack.arrays)
    return path


@pytest.fixture(scope="module")
def reduced(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    """Cells of the reduced size for three seeds, as if the excerpt were its pack."""
    folder, pack = tmp_path_factory.mktemp("packs"), excerpt("enwiki-wp")
    put(folder, pack, "enwiki-wp-48m")
    words = {"validation": 1000, "test": 1000}
    with pytest.MonkeyPatch.context() as patch:
        known = {pack.sha256: pack.name}
        patch.setattr(needed_packs, "known_packs", Mock(return_value=known))
        patch.setattr(packs_module, "counted_words", lambda: {pack.sha256: words})
        return cells("reduced", [0, 1, 2], {}, folder)


def test_the_density_of_every_arm_is_that_of_the_table(reduced: list[Cell]) -> None:
    for density, arms in SCALES["reduced"].sets.items():
        assert {*arms} == {*DENSITIES[density]}
        for name, width in arms.items():
            found = 100 * Arm(name, width, 256, causal=True).density(12)
            assert found == pytest.approx(DENSITIES[density][name], abs=0.1), name


def test_a_random_arm_draws_anew_for_every_layer_and_seed() -> None:
    masks = {
        Arm("random", 4, 16, causal=True, draw=draw).parts(layer)[0].mask().tobytes()
        for draw in range(2)
        for layer in range(3)
    }
    assert len(masks) == 6
    assert Arm("random", 4, 16, causal=False).pattern(0).n == 16


def test_arms_start_from_the_same_weights_and_see_no_future() -> None:
    model = EncoderConfig(50, 16, dim=16, layers=2, heads=2, ffn=16, norm="pre")
    tokens = torch.randint(50, (2, 16), generator=torch.Generator().manual_seed(0))
    later = tokens.clone()
    later[:, 9:] = 1
    states: list[dict[str, torch.Tensor]] = []
    for name in ("dense", "strided-multihead", "star", "star-first", "random"):
        torch.manual_seed(5)
        encoder = Arm(name, 4, 16, causal=True).encoder(model)
        states.append(encoder.state_dict())
        seen, other = encoder(tokens), encoder(later)
        torch.testing.assert_close(seen[:, :9], other[:, :9])
        assert not torch.equal(seen[:, 9:], other[:, 9:])
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_causal_star_is_a_window_and_star_first_keeps_its_relay() -> None:
    star, first = (
        Arm(name, 3, 32, causal=True).parts(0)[0].mask() for name in ("star", "star-first")
    )
    k, j = np.indices((32, 32))
    window = (j <= k) & (k - j <= 3)
    ring = slice(0, 27)  # beyond are the seam of the ring and the row of the relay
    assert (star[ring] == window[ring]).all()
    assert first[:, 0].all()
    assert not star[1:31, 0][4:20].any()


def test_the_core_of_every_seed_comes_first(reduced: list[Cell]) -> None:
    found = [tuple(labels.values()) for labels in order("reduced", [0, 1, 2])]
    assert len(set(found)) == len(found) == 30 + 8 + 18
    assert {arm for _, arm, _ in found[:10]} == {*DENSITIES["13"], "dense"}
    assert {seed for *_, seed in found[:10]} == {0}
    assert {density for density, *_ in found[-18:]} == {*at_other_rates("13")}
    for claim in load_claims(PACKAGE).claims:
        named = {arm for pair in claim["comparisons"] for arm in pair}
        assert named <= {*DENSITIES[claim["cell"]["density"]]}
    by_name = {cell.name: cell for cell in reduced}
    slow = by_name["13-half-rate/star/0"].settings["train"]
    assert (slow["steps"], slow["lr"]) == (1600, 5e-4)


def made_up(found: list[Cell], nats: Mapping[str, float]) -> tuple[Any, Any]:
    """Results of cells whose arms are as good as said, and the scores behind them."""
    generator = np.random.default_rng(1)
    hard = 0.3 * generator.normal(size=300)
    results: list[dict[str, Any]] = []
    scores: dict[str, dict[str, np.ndarray]] = {}
    for cell in found:
        arm = str(cell.labels["arm"])
        own = nats[arm] + hard + 0.02 * generator.normal(size=300)
        own += 0.002 * generator.normal()
        kept = {"nats": own, "without_context": own + 0.1}
        said = {
            metric: {"mean_sampled": float(values.mean()), "standard_error_sampled": 0.02}
            for metric, values in kept.items()
        }
        width = cell.settings["model"]["mixers"]["width"]
        density = DENSITIES[str(cell.labels["density"]).split("-")[0]][arm]
        curve = [{"step": s, "loss": nats[arm] + 2 / s} for s in range(1, 40)]
        more = {
            "test": said, "validation": said, "curve": curve, "density": density,
            "width": width, "perplexity": {"validation": 50.0, "without_context": 60.0},
        }  # fmt: skip
        results.append(
            {
                "labels": dict(cell.labels), "settings": cell.settings, "complete": True,
                "value_sampled": float(np.exp(own.mean())), "more": more,
                "standard_error_sampled": 0.3,
            }
        )  # fmt: skip
        scores[cell.name] = {**kept, "clusters": np.arange(300) // 15}
    return results, scores


AS_CLAIMED = {
    "dense": 3.9, "strided-union": 4.0, "star": 4.02, "star-first": 4.01,
    "strided-multihead": 4.1, "strided-sequential": 4.12, "fixed-union": 4.08,
    "fixed-multihead": 4.15, "fixed-sequential": 4.16, "random": 4.4,
}  # fmt: skip


def verdicts(found: list[Cell], nats: Mapping[str, float]) -> dict[str, str]:
    results, scores = made_up(found, nats)
    judged = judge(load_claims(PACKAGE), results, scores, "reduced")
    return {judgement.claim["id"]: judgement.verdict for judgement in judged}


def test_the_claims_hold_where_they_should_and_nowhere_else(reduced: list[Cell]) -> None:
    assert verdicts(reduced, AS_CLAIMED) == {
        "L1": "holds", "L2": "holds", "L1-26": "drawn, 2 seeds", "L2-26": "drawn, 2 seeds",
        "L3": "drawn, 3 seeds",
    }  # fmt: skip
    assert verdicts(reduced, AS_CLAIMED | {"random": 4.05})["L1"] == "contradicted"
    assert verdicts(reduced, AS_CLAIMED | {"random": 4.16})["L1"] == "undecided"
    assert verdicts(reduced, AS_CLAIMED | {"star": 4.2})["L2"] == "contradicted"
    assert verdicts(reduced, AS_CLAIMED | {"star-first": 3.95})["L2"] == "holds"
    assert verdicts(reduced, AS_CLAIMED | {"fixed-union": 4.021})["L2"] == "undecided"
    nowhere = {"L1": "not informative", "L2": "not informative"}
    for dense in (5.1, 4.11):
        shut = verdicts(reduced, AS_CLAIMED | {"dense": dense})
        assert {name: shut[name] for name in nowhere} == nowhere
    few = [cell for cell in reduced if cell.labels["seed"] != 2]
    assert verdicts(few, AS_CLAIMED)["L1"] == "drawn, 2 seeds"
    some = [cell for cell in reduced if cell.labels["arm"] != "fixed-sequential"]
    assert verdicts(some, AS_CLAIMED)["L1"] == "not run"


def test_an_order_that_flips_at_another_rate_leaves_a_claim_undecided(
    reduced: list[Cell],
) -> None:
    results, scores = made_up(reduced, AS_CLAIMED)
    for result in results:
        if list(result["labels"].values())[:2] == ["13-half-rate", "random"]:
            result["more"]["test"]["nats"]["mean_sampled"] -= 1.0
    judged = judge(load_claims(PACKAGE), results, scores, "reduced")
    found = {judgement.claim["id"]: judgement for judgement in judged}
    assert found["L1"].verdict == "undecided"
    assert any("change places in 13-half-rate" in note for note in found["L1"].notes)


def test_the_report_says_what_causal_star_is(reduced: list[Cell], tmp_path: Path) -> None:
    results, scores = made_up(reduced, AS_CLAIMED)
    path = tmp_path / "sparse-lm_reduced_cpu.json"
    report = new_report(SPARSE_LM, "reduced") | {"results": results}
    path.write_text(json.dumps(report))
    save_arrays(scores_path(path), scores)
    show(SPARSE_LM, path)
    told = path.with_suffix(".md").read_text()
    assert CAUSAL_STAR in told
    assert "a statement about early training" in told.splitlines()[0]
    rows = [line.split("|")[1:5] for line in told.splitlines() if line.startswith("| 26 ")]
    assert [float(row[2]) for row in rows] == pytest.approx(
        [DENSITIES["26"][row[1].strip()] for row in rows], abs=0.11
    )
    assert [int(row[3]) for row in rows] == [64, 32, 65, 64]
    assert "n = 256 x 64, 6,400 updates (104.9M tokens), rate 0.001, bf16" in told
    assert path.with_suffix(".png").stat().st_size > 30_000


def test_a_smoke_run_from_the_excerpt_to_the_report(tmp_path: Path) -> None:
    masks = np.stack([one.mask() for one in strided(32, 4).parts])
    np.save(tmp_path / "mine.npy", masks)
    path = reproduce(
        SPARSE_LM, "smoke", out=tmp_path / "out", runs=tmp_path / "runs",
        only=["own/mine/0", "21/random/0"], changes={"pattern": str(tmp_path / "mine.npy")},
    )  # fmt: skip
    assert path == results_path(tmp_path / "out", SPARSE_LM, "smoke")
    own, drawn = load_report(path)["results"][::-1]
    assert (own["labels"]["arm"], drawn["labels"]["arm"]) == ("mine", "random")
    for result in (own, drawn):
        test, perplexity = result["more"]["test"], result["more"]["perplexity"]
        share = result["settings"]["model"]["words_of_a_token"]["test"]
        assert np.log(perplexity["nats"]) * share == pytest.approx(
            test["nats"]["mean_sampled"]
        )
        assert result["value_sampled"] == perplexity["nats"]
        assert test["nats"]["mean_sampled"] < np.log(200)
    scores = load_scores(scores_path(path))["21/random/0"]
    assert {*scores} == {"nats", "without_context", "clusters"}
    assert len(np.unique(scores["clusters"])) == 8, "documents"
    assert own["more"]["density"] == pytest.approx(100 * (93 + 144) / 2 / 528)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="enwiki-wp-36m, and no folder"):
        cells("reduced", [0], {})
    with pytest.raises(
        TrainingError, match=r"holds none of them\. Make it: everyformer data"
    ):
        cells("small", [0], {}, tmp_path)
    put(tmp_path / "words", words_excerpt(), "enwiki-wp")
    with pytest.raises(FileFormatError, match=r"has the sha256 .* enwiki-wp-48m"):
        cells("reduced", [0], {}, tmp_path / "words")
    with pytest.raises(FileFormatError, match="does not say how many words"):
        cells("small", [0], {}, tmp_path / "words")
    with pytest.raises(TrainingError, match=r"reads LM1B .* does not hold all of it"):
        cells("paper", [0], {}, tmp_path)
    with pytest.raises(TrainingError, match="no setting width"):
        cells("smoke", [0], {"width": 4})
    (tmp_path / "other.json").write_text(json.dumps(random(16, 3).to_json()))
    with pytest.raises(TrainingError, match="a pattern for 16 tokens, and windows have 32"):
        cells("smoke", [0], {"pattern": str(tmp_path / "other.json")})
    np.save(tmp_path / "numbers.npy", np.ones((32, 32)))
    with pytest.raises(FileFormatError, match="an array of float64"):
        cells("smoke", [0], {"pattern": str(tmp_path / "numbers.npy")})
    part = {"kind": "Gathered", "n": 32, "listed": {"indptr": [0], "indices": [2**40]}}
    wrong = {"name": "wrong", "parts": [part], "path": None}
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    with pytest.raises(FileFormatError, match=r"wrong.json does not hold .*whole numbers"):
        cells("smoke", [0], {"pattern": str(tmp_path / "wrong.json")})
    ones = np.ones((32, 32), dtype=bool)
    np.savez(tmp_path / "archive.npz", ones)
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    with pytest.raises(FileFormatError, match=r"archive\.npy does not hold a pattern"):
        cells("smoke", [0], {"pattern": str(tmp_path / "archive.npy")})
    np.save(tmp_path / "cut.npy", ones)
    cut = (tmp_path / "cut.npy").read_bytes().replace(b"(32, 32)", b"(32, 32 ", 1)
    (tmp_path / "cut.npy").write_bytes(cut)
    with pytest.raises(FileFormatError, match=r"cut\.npy does not hold a pattern"):
        cells("smoke", [0], {"pattern": str(tmp_path / "cut.npy")})
    with pytest.raises(TrainingError, match="is not a file of masks"):
        cells("smoke", [0], {"pattern": "nowhere.npy"})
    with pytest.raises(TrainingError, match=r"matches none of the 5 cells"):
        reproduce(
            SPARSE_LM, "smoke", out=tmp_path / "out", runs=tmp_path / "runs",
            only=["13/star/0"],
        )  # fmt: skip
