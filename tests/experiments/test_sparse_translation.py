"""`sparse-translation`: its arms, claims and texts, and the smoke size from end to end."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from everyformer.data.batch import Draw
from everyformer.data.packs.pack import write_pack
from everyformer.data.packs.translation_excerpt import translation_excerpt
from everyformer.data.translation import Translations
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.cell import Surroundings
from everyformer.experiments.claims import Judgement, judge, load_claims
from everyformer.experiments.matched import matched
from everyformer.experiments.rates import at_other_rates
from everyformer.experiments.reproduce import reproduce, show
from everyformer.experiments.scores import CLUSTERS, load_scores, scores_path
from everyformer.experiments.sparse_translation import SPARSE_TRANSLATION
from everyformer.experiments.sparse_translation.arms import (
    SIDES,
    TranslationArm,
    connections,
)
from everyformer.experiments.sparse_translation.cells import cells
from everyformer.experiments.sparse_translation.packs import pairs_of
from everyformer.experiments.sparse_translation.plan import order
from everyformer.experiments.sparse_translation.scoring import completed, scored
from everyformer.experiments.sparse_translation.sizes import SCALES
from everyformer.experiments.sparse_translation.texts import as_array, chosen, from_array
from everyformer.layers.models.encoder_decoder import EncoderDecoderModel
from everyformer.patterns import strided
from everyformer.train.compiled import compile_parts, many_variants
from everyformer.train.objectives.translate import Translate

KEYS = ("name", "licence", "tokeniser", "sources", "counts")
ONLY = ["100/dense/0", "*/random/0"]


def test_smoke_runs_translates_scores_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First without sacreBLEU, as on a machine that only translates; `show` adds it."""
    at = "everyformer.experiments.sparse_translation.scoring.find_spec"
    monkeypatch.setattr(at, dict[str, object]().get)
    path = reproduce(
        SPARSE_TRANSLATION, "smoke", out=tmp_path, runs=tmp_path / "runs", only=ONLY
    )
    kept = load_scores(scores_path(path))
    assert set(kept) == {"100/dense/0", "25/random/0"}
    for own in kept.values():
        assert len(own["nats"]) == len(own[CLUSTERS]) == 24
        assert len(from_array(own["texts_test"])) == 6
    first = json.loads(path.read_text())["results"]
    assert all("translated" not in result["more"] for result in first)
    assert "2 of 2 results have no BLEU yet" in path.with_suffix(".md").read_text()
    monkeypatch.undo()
    show(SPARSE_TRANSLATION, path)
    results = json.loads(path.read_text())["results"]
    for result in results:
        found = result["more"]["translated"]["test"]
        assert found["texts"] == 6
        assert "tok:13a" in found["signature"]["bleu"]
        nats = result["more"]["test"]["nats"]["mean_sampled"]
        assert result["value_sampled"] == nats
        assert 5 < nats < 6.5
    table = path.with_suffix(".md").read_text()
    assert "case:mixed|eff:no|tok:13a" in table
    assert "no BLEU yet" not in table
    assert path.with_suffix(".png").is_file()
    assert results[0]["more"]["parameters"] == results[1]["more"]["parameters"]


def test_the_arms_have_the_densities_of_the_specification() -> None:
    """Both sides, n = 256: 12.1 to 13.6 %."""
    scale = SCALES["reduced"]
    model = replace(scale.model, vocab_size=64, encoder_layers=2, decoder_layers=2)
    decoder = {
        "strided-union": 12.7, "strided-multihead": 13.0, "strided-sequential": 13.0,
        "fixed-union": 12.5, "fixed-multihead": 13.6, "fixed-sequential": 13.6,
        "star": 13.2, "random": 12.7,
    }  # fmt: skip
    assert set(scale.widths) == set(decoder)
    for name, width in scale.widths.items():
        arm = TranslationArm(name, width, model)
        found = 100 * connections(arm, "decoder")[-1] / (256 * 257 / 2)
        assert found == pytest.approx(decoder[name], abs=0.05), name
        assert 12.0 < 100 * connections(arm, "encoder")[-1] / 256**2 < 13.6, name
    whole = TranslationArm("strided-union", 16, model)
    same = np.full(3, 256)
    assert whole.density_of(same, same) == pytest.approx(whole.density(), abs=0.2)
    assert whole.density_of(np.array([64]), np.array([64])) > 2 * whole.density()


def test_random_is_as_dense_as_strided_among_the_first_tokens() -> None:
    like = strided(48, 6).union().parts[0]
    drawn, other = (matched(like, seed).parts[0] for seed in (1, 2))
    assert not np.array_equal(drawn.mask(), other.mask())
    for m in (1, 5, 17, 48):
        assert drawn.mask()[:m, :m].sum() == like.mask()[:m, :m].sum()
    model = replace(SCALES["smoke"].model, encoder_layers=3, decoder_layers=3)
    arm = TranslationArm("random", 6, model)
    masks = [one.allowed for side in SIDES for one in arm.mixers(side)]
    for k, one in enumerate(masks):
        assert not any(torch.equal(one, two) for two in masks[:k]), "a draw for each layer"


def test_star_has_its_relay_in_front_of_the_encoder_and_nowhere_in_the_decoder() -> None:
    model = SCALES["smoke"].model
    arm = TranslationArm("star", 3, model)
    encoder, decoder = (arm.mixers(side)[0].allowed[0] for side in SIDES)
    assert encoder[:, 0].all()
    assert encoder[0].all()
    assert not encoder[5:20, -1].any()
    k = torch.arange(20)
    window = (k[:, None] >= k) & (k[:, None] - k <= 3)
    assert torch.equal(decoder[:20, :20], window)


def test_the_plan_has_the_core_first_and_arms_share_weights_and_pairs() -> None:
    labels = order("reduced", (0, 1, 2))
    assert [one["arm"] for one in labels[:9]] == ["dense", *SCALES["reduced"].widths]
    assert len(labels) == 3 * 9 + 2 * 8
    assert {one["density"] for one in labels} == {"100", "13", *at_other_rates("13")}
    made = cells("smoke", (0, 1), {})
    tasks = [cell.settings["task"] for cell in made]
    assert tasks[0] == tasks[4] != tasks[5]
    with pytest.raises(TrainingError, match="no setting layers"):
        cells("smoke", (0,), {"layers": 3})


def _runs(
    nats: dict[str, float], seeds: int, gate: float = 2.5, other: float = 3.5
) -> tuple[list[dict[str, Any]], dict[str, dict[str, np.ndarray]]]:
    """Results in which an arm has these nats, with a little noise."""
    rng = np.random.default_rng(0)
    results: list[dict[str, Any]] = []
    scores: dict[str, dict[str, np.ndarray]] = {}
    common = rng.normal(0, 0.3, 60)
    for arm, mean in {"dense": gate, **nats}.items():
        for seed in range(seeds):
            own = mean + common + rng.normal(0, 0.01) + rng.normal(0, 0.01, 60)
            density = "100" if arm == "dense" else "13"
            labels = {"density": density, "arm": arm, "seed": seed}
            told = {
                "nats": {"mean_sampled": float(own.mean())},
                "nats_other_source": {"mean_sampled": other},
            }
            results.append({
                "labels": labels, "complete": True, "settings": {},
                "more": {"test": told, "validation": told},
            })  # fmt: skip
            name = "/".join(map(str, labels.values()))
            scores[name] = {"nats": own, CLUSTERS: np.arange(60) // 3}
    return results, scores


AS_CLAIMED = {
    "strided-union": 2.6, "fixed-union": 2.6, "strided-multihead": 2.8,
    "strided-sequential": 2.8, "fixed-multihead": 2.8, "fixed-sequential": 2.8,
    "star": 3.0, "random": 3.0,
}  # fmt: skip


def _judged(nats: dict[str, float], seeds: int = 3, **more: float) -> list[Judgement]:
    claims = load_claims("everyformer.experiments.sparse_translation")
    return judge(claims, *_runs(nats, seeds, **more), "reduced")


def test_claims_hold_fail_and_say_nothing_where_they_must() -> None:
    assert [one.verdict for one in _judged(AS_CLAIMED)] == ["holds", "holds"]
    turned = {**AS_CLAIMED, "star": 2.4}
    assert [one.verdict for one in _judged(turned)] == ["contradicted", "contradicted"]
    first = {**AS_CLAIMED, "fixed-union": 2.9}
    assert [one.verdict for one in _judged(first)] == ["contradicted", "holds"]
    assert {one.verdict for one in _judged(AS_CLAIMED, 2)} == {"drawn, 2 seeds"}
    for gate, other, why in ((3.6, 9.0, "G1"), (2.5, 2.6, "G2"), (2.95, 9.0, "G3")):
        for one in _judged(AS_CLAIMED, gate=gate, other=other):
            assert one.verdict == "not informative"
            assert why in " ".join(one.notes)
    partly = {arm: nats for arm, nats in AS_CLAIMED.items() if arm != "random"}
    assert {one.verdict for one in _judged(partly)} == {"not run"}


def test_texts_and_packs_of_other_runs_are_refused(tmp_path: Path) -> None:
    texts = ["Ein\nzwei €.", "", "drei"]
    assert from_array(as_array(texts)) == ["Ein zwei €.", "", "drei"]
    with pytest.raises(FileFormatError, match="3 translations are stored for 2"):
        scored(texts, ["a", "b"])
    same = scored(["The cat sat on the mat."], ["The cat sat on the mat."])
    assert (round(same["bleu"]), round(same["chrf"])) == (100, 100)
    lower = scored(["the cat sat on the mat."], ["The cat sat on the mat."])
    assert lower["bleu"] < 100, "case counts"
    result: dict[str, Any] = {
        "labels": {"density": "100", "arm": "dense", "seed": 0}, "complete": True,
        "more": {}, "settings": {"task": {"pack_sha256": "f" * 64}},
    }  # fmt: skip
    kept = {"100/dense/0": {"texts_test": as_array(texts)}}
    with pytest.raises(FileFormatError, match="its references are others"):
        completed([result], kept, "smoke", None)
    assert not completed([result], kept, "reduced", None), "no pack, nothing is scored"
    with pytest.raises(TrainingError, match=r"no folder was given.*data pack europarl"):
        pairs_of("reduced", None, 0)
    with pytest.raises(TrainingError, match=r"reads WMT18 en-cs"):
        pairs_of("paper", tmp_path, 0)
    pack = translation_excerpt()
    header = {key: pack.header[key] for key in KEYS} | {"name": "europarl-en-de"}
    write_pack(tmp_path / "europarl-en-de.pack.xz", header, pack.arrays)
    with pytest.raises(FileFormatError, match="not be of the texts that they name"):
        pairs_of("reduced", tmp_path, 0)


def test_references_are_those_of_the_pairs_that_were_translated() -> None:
    """Settings of the run say which: with those of the size they would be others."""
    task = Translations(translation_excerpt(), 0, lengths=(16, 32), evaluated=90)
    said = task.texts(chosen(task, "test", 4))
    usual = Translations(task.pack, 0, lengths=(16, 32), evaluated=24)
    assert said != usual.texts(chosen(usual, "test", 4))
    result: dict[str, Any] = {
        "labels": {"density": "100", "arm": "dense", "seed": 0}, "complete": True,
        "more": {}, "settings": {"task": task.describe(), "model": {"translated": 4}},
    }  # fmt: skip
    kept = {"100/dense/0": {"texts_test": as_array(said)}}
    assert completed([result], kept, "smoke", None)
    assert result["more"]["translated"]["test"]["bleu"] == pytest.approx(100)


@pytest.mark.compile
def test_arms_share_compiled_code() -> None:
    """Of each length a block of either side and the losses, once for all arms."""
    torch.compiler.reset()
    task = Translations(translation_excerpt(), 0, lengths=(16, 32))
    model = replace(SCALES["smoke"].model, vocab_size=task.pack.vocabulary)
    made: list[int] = []
    for name, width in (("strided-multihead", 8), ("random", 6)):
        arm = TranslationArm(name, width, model)
        encoder, decoder = (arm.mixers(side) for side in SIDES)
        objective = Translate(
            EncoderDecoderModel(model, encoder_mixers=encoder, decoder_mixers=decoder)
        )
        compile_parts(objective, backend="aot_eager")
        for n in task.lengths:
            before = counters["stats"]["unique_graphs"]
            with many_variants():
                objective(task.batch("train", Draw(torch.arange(3), n))).sum().backward()
            made.append(counters["stats"]["unique_graphs"] - before)
    assert made == [3, 3, 0, 0]


@pytest.mark.gpu
def test_recorded_and_compiled_updates_are_those_of_python(tmp_path: Path) -> None:
    """On a GPU, in bf16, one graph for each bucket; the texts come out alike too."""
    changes = {"precision": "bf16", "steps": 40, "lr": 5e-3, "dropout": 0.1}
    changes |= {"evaluate_every": 20, "checkpoint_every": 0, "log_every": 1}
    found: list[list[float]] = []
    for more in ({}, {"record": True}, {"record": True, "compile": True}):
        cell = cells("smoke", (0,), {**changes, **more})[4]
        result = cell.run(Surroundings(tmp_path / str(len(found))))
        lines = result.more["curve"]
        found.append([line["loss"] for line in lines if "loss" in line])
        assert len(from_array(result.scores["texts_test"])) == 6
        assert result.more["test"]["nats"]["mean_sampled"] < 5.9
    assert found[1] == pytest.approx(found[0], rel=5e-3)
    assert found[2] == pytest.approx(found[0], rel=2e-2)
