"""`mixers-bert`: its cells, its refusals, and a run from packs to claims."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.data.excerpt_packs import excerpt_packs
from tests.experiments.kills import KILLED, smoke_run
from tests.programs import run_program

from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.pack import write_pack
from everyformer.data.squad.windows import LONGEST_QUESTION, windows
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments import needed_packs
from everyformer.experiments.arrays import save_arrays
from everyformer.experiments.cell import Cell, Size
from everyformer.experiments.claims import judge, load_claims
from everyformer.experiments.document import claims_text
from everyformer.experiments.mixers_bert import MIXERS_BERT
from everyformer.experiments.mixers_bert.cells import cells, forward_operations
from everyformer.experiments.mixers_bert.plan import mixers_of, order
from everyformer.experiments.mixers_bert.settings import SETTABLE, with_changes
from everyformer.experiments.mixers_bert.sizes import SCALES
from everyformer.experiments.refusals import refuse_slow
from everyformer.experiments.report import load_report, new_report, results_path
from everyformer.experiments.reproduce import reproduce, show
from everyformer.experiments.scores import load_scores, scores_path
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import BERT_BASE
from everyformer.train.throughput import forward_flops

PACKAGE = "everyformer.experiments.mixers_bert"
CORE = ("attention", "light", "average", "bilinear", "light-1", "light-2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The excerpts, as packs on the disk."""
    place = tmp_path_factory.mktemp("packs")
    excerpt_packs(place)
    for path in place.glob("excerpt-*"):
        kind = path.name.removeprefix("excerpt-").removesuffix(".pack.xz")
        path.rename(place / f"{'enwiki-wp' if kind == 'enwiki' else kind}.pack.xz")
    return place


@pytest.fixture(scope="module")
def reduced(folder: Path) -> list[Cell]:
    """Cells of the reduced size for three seeds, as if the excerpts were its packs."""
    packs = map(excerpt, ("enwiki-wp", "nli", "squad"))
    known = {pack.sha256: pack.name for pack in packs}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needed_packs, "known_packs", Mock(return_value=known))
        return cells("reduced", [0, 1, 2], {}, folder)


@pytest.fixture(scope="module")
def smoke(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cells of attention at the size smoke, and their report."""
    place = tmp_path_factory.mktemp("smoke")
    smoke_run(place, folder, ["*/attention/0"])
    return place


def by_name(found: list[Cell]) -> dict[str, Cell]:
    return {cell.name: cell for cell in found}


def test_the_core_of_every_seed_comes_first() -> None:
    found = [tuple(labels.values()) for labels in order("reduced", [0, 1])]
    assert len(set(found)) == len(found)
    core = 2 * len(CORE) + 6
    pretrained = [arm for task, arm, _ in found[:core] if task == "mlm"]
    assert tuple(pretrained) == CORE
    assert {seed for *_, seed in found[: core + 1]} == {0}
    assert found[core] == ("hypothesis", "attention", 0)
    assert {seed for *_, seed in found[core + 1 : 2 * core + 1]} == {1}
    for place, (task, arm, seed) in enumerate(found):
        if task in ("mnli", "squad"):
            parent = "mlm" if task == "mnli" else "mlm-long"
            assert found[place - 1] == (parent, arm, seed), "right after its parent"
    named = {arm for claim in load_claims(PACKAGE).claims
             if "reduced" in claim["sizes"] for pair in claim["comparisons"] for arm in pair
             if not arm.startswith("better")}  # fmt: skip
    assert named <= {arm for _, arm, _ in found}


def test_the_arms() -> None:
    assert mixers_of("light-2", 6) == ("light",) * 2 + ("attention",) * 4
    assert mixers_of("bilinear", 2) == ("bilinear",) * 2


def test_settings_of_the_reduced_size() -> None:
    """Those of the pilots; a change here is a change of the rules."""
    scale = SCALES["reduced"]
    train, model = scale.masked, scale.encoder
    assert (model.layers, model.dim, model.heads, model.ffn) == (6, 384, 6, 1536)
    assert (model.norm, model.max_len, model.filters, model.filter_length) == (
        "pre", 128, 8, 32,
    )  # fmt: skip
    assert (train.steps, train.batch, train.lr, train.warmup) == (4000, 256, 1e-3, 500)
    assert (train.betas, train.clip, train.weight_decay) == ((0.9, 0.98), 1.0, 0.01)
    assert not train.decay_biases
    assert train.precision == "bf16"
    assert train.compile
    assert train.record
    assert (scale.mnli.train.lr, scale.mnli.train.batch, scale.mnli.epochs) == (1e-4, 64, 3)
    assert (scale.squad.train.batch, scale.squad.epochs, scale.stride) == (48, 2, 128)


def test_the_model_of_the_paper_is_bert_base() -> None:
    model = SCALES["paper"].encoder
    assert model.dropout == 0.01, "as printed"
    assert replace(model, vocab_size=30522, dropout=0.0) == BERT_BASE


def test_operations_are_those_that_the_library_counts() -> None:
    model = replace(SCALES["reduced"].encoder, vocab_size=640)
    counted = forward_operations(model, 128, 19)
    assert counted == forward_flops(Encoder(model, device="meta"), 128, 19)
    light = replace(model, mixers="light")
    assert forward_operations(light, 128, 19) < counted


def test_settings_go_where_they_belong() -> None:
    scale, of = with_changes(
        SCALES["small"],
        {"lr": 2e-3, "mnli.lr": 5e-5, "layers": 3, "squad.epochs": 7, "ambiguous": "keep"},
    )
    assert [of[kind]["lr"] for kind in ("mlm", "mnli", "squad")] == [2e-3, 5e-5, 2e-3]
    assert scale.encoder.layers == 3
    assert (scale.squad.epochs, scale.mnli.epochs) == (7, 2)
    assert scale.ambiguous == "keep"
    with pytest.raises(TrainingError, match=r"no setting nli\.lr"):
        with_changes(SCALES["small"], {"nli.lr": 1.0})


def test_a_refusal_names_every_setting() -> None:
    with pytest.raises(TrainingError) as refused:
        with_changes(SCALES["smoke"], {"depth": 3})
    for name in SETTABLE.own:
        assert name in str(refused.value)


@pytest.mark.parametrize("size", ["smoke", "small", "reduced", "paper"])
def test_windows_have_room_beside_the_longest_question(size: Size) -> None:
    scale = SCALES[size]
    longest = scale.squad.lengths[-1]
    assert longest <= scale.long_length
    windows(np.array([300]), np.array([LONGEST_QUESTION]), longest, scale.stride)


def test_a_fine_tuning_is_named_by_all_that_its_parent_is() -> None:
    plain, other = (by_name(cells("smoke", [0], c)) for c in ({}, {"mlm.lr": 2e-3}))
    name = "mnli/light/0"
    assert plain[name].parent is plain["mlm/light/0"]
    assert plain[name].settings["train"] == other[name].settings["train"]
    assert plain[name].identity != other[name].identity
    assert plain["squad/light/0"].parent is plain["mlm-long/light/0"]


def test_a_smoke_run_from_packs_to_the_report(smoke: Path) -> None:
    path = results_path(smoke / "out", MIXERS_BERT, "smoke")
    report = load_report(path)
    names = ["/".join(map(str, r["labels"].values())) for r in report["results"]]
    assert names == [
        "mlm/attention/0", "mnli/attention/0", "mlm-long/attention/0",
        "squad/attention/0", "hypothesis/attention/0",
    ]  # fmt: skip
    assert all(r["complete"] for r in report["results"])
    assert path.with_suffix(".png").stat().st_size > 10_000
    told = path.with_suffix(".md").read_text()
    assert "Claims are not judged at size smoke." in told
    assert "0.7820" not in told, "no comparison with made-up texts"
    assert "premises hidden" in told
    scores = load_scores(scores_path(path))
    assert {*scores} == {*names}
    questions = scores["squad/attention/0"]
    assert {*questions} == {"f1", "exact", "clusters"}
    counts = {name: len(values) for name, values in questions.items()}
    assert set(counts.values()) == {96}
    assert len(np.unique(questions["clusters"])) == 24, "paragraphs"
    assert scores["mlm/attention/0"]["nats"].shape == (32,)
    show(MIXERS_BERT, path)
    assert path.with_suffix(".md").read_text() == told


def test_a_cell_without_its_parent_is_skipped_with_the_reason(tmp_path: Path) -> None:
    places: dict[str, Any] = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    path = reproduce(MIXERS_BERT, "smoke", **places, only=["mnli/average/0"])
    report = load_report(path)
    assert report["results"] == []
    assert "Run it too: --only 'mlm/average/0'" in report["skipped"]["mnli/average/0"]
    assert "Not run:" in path.with_suffix(".md").read_text()
    both = ["m*/average/0"]
    reproduce(MIXERS_BERT, "smoke", **places, only=["mlm/average/0"], resume=True)
    weights = tmp_path / "runs/mixers-bert_smoke/mlm_average_0/encoder.safetensors"
    weights.rename(tmp_path / "kept")
    reproduce(MIXERS_BERT, "smoke", **places, only=both, resume=True)
    assert "was trained elsewhere" in load_report(path)["skipped"]["mnli/average/0"]
    (tmp_path / "kept").rename(weights)
    reproduce(MIXERS_BERT, "smoke", **places, only=both, resume=True)
    report = load_report(path)
    assert report["skipped"] == {}
    assert len(report["results"]) == 2


def test_packs_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some/enwiki-wp-48m.pack.xz").write_bytes(b"")
    with pytest.raises(TrainingError, match="does not hold the packs nli, squad"):
        cells("small", [0], {}, tmp_path / "some")
    with pytest.raises(FileFormatError, match="--size reduced is about"):
        cells("reduced", [0], {}, folder)
    part = tmp_path / "part"
    part.mkdir()
    for path in folder.iterdir():
        (part / path.name).write_bytes(path.read_bytes())
    squad = part / "squad.pack.xz"
    squad.write_bytes(squad.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="is not a whole pack"):
        cells("smoke", [0], {}, part)
    squad.unlink()
    other = excerpt("squad")
    header = {name: other.header[name] for name in ("name", "licence", "sources", "counts")}
    tokeniser = {**other.header["tokeniser"], "sha256": "0" * 64}
    write_pack(squad, {**header, "tokeniser": tokeniser}, other.arrays)
    told = r"'excerpt-enwiki' and 'excerpt-squad' .*token ids mean other words"
    with pytest.raises(FileFormatError, match=told):
        cells("smoke", [0], {}, part)


def test_without_a_gpu_the_reduced_size_says_how_long_it_would_take(
    reduced: list[Cell],
) -> None:
    cpu = torch.device("cpu")
    with pytest.raises(TrainingError, match=r"operations, [\d.]+ (days|years) or more"):
        refuse_slow(reduced, "reduced", cpu)
    quick = [replace(cell, operations=cell.operations / 1e5) for cell in reduced]
    refuse_slow(quick, "reduced", cpu)
    refuse_slow(reduced, "reduced", torch.device("cuda"))
    with pytest.raises(TrainingError, match="These settings of --size small") as refused:
        refuse_slow(reduced[:1], "small", cpu)
    assert "1 cell is" in str(refused.value)
    assert "Use --size small" not in str(refused.value)


def made_up(found: list[Cell], seed_of: Mapping[str, float]) -> tuple[Any, Any]:
    """Results of cells whose arms are as good as said, and the scores behind them."""
    generator = np.random.default_rng(1)
    results: list[dict[str, Any]] = []
    scores: dict[str, dict[str, np.ndarray]] = {}
    for cell in found:
        good = seed_of[str(cell.labels["arm"])] + 0.003 * generator.normal()
        kept = {
            metric: (good if metric != "nats" else 4 - good)
            + 0.05 * generator.normal(size=300)
            for metric in ("accuracy", "nats", "next", "f1", "exact")
        }
        said = {
            metric: {"mean_sampled": float(values.mean())}
            for metric, values in kept.items()
        }
        curve = [{"step": step, "nats": 6 - good} for step in (250, 500)]
        results.append(
            {
                "labels": dict(cell.labels), "settings": cell.settings, "complete": True,
                "value_sampled": good, "standard_error_sampled": 0.003,
                "more": {"test": said, "validation": said, "curve": curve},
            }
        )  # fmt: skip
        scores[cell.name] = {**kept, "clusters": np.arange(300) // 3}
    return results, scores


def test_a_report_of_the_reduced_size(reduced: list[Cell], tmp_path: Path) -> None:
    order_of_arms = {
        "light-1": 0.7, "light-2": 0.65, "attention": 0.6, "light-4": 0.5, "light": 0.45,
        "bilinear": 0.4, "separable": 0.4, "average": 0.2,
    }  # fmt: skip
    results, scores = made_up(reduced, order_of_arms)
    path = tmp_path / "mixers-bert_reduced_cpu.json"
    report = new_report(MIXERS_BERT, "reduced") | {"results": results}
    path.write_text(json.dumps(report))
    save_arrays(scores_path(path), scores)
    show(MIXERS_BERT, path)
    told = path.with_suffix(".md").read_text()
    assert "a statement about early training" in told.splitlines()[0]
    assert "| 0.7820 | 0.6" in told
    assert told.count("| holds ") == 8
    assert "C3b light-1 better than attention" in told
    assert "from update 3,600 on 256 x 128" in told
    assert "n = 128 x 256, 4,000 updates (131.1M tokens), rate 0.001, bf16" in told
    assert "6 x 384, pre-norm, 8 filters of 32" in told
    assert path.with_suffix(".png").stat().st_size > 20_000
    few = [r for r in results if r["labels"]["seed"] < 2]
    drawn = claims_text(judge(load_claims(PACKAGE), few, scores, "reduced"), "reduced")
    assert drawn.count("drawn, 2 seeds") == 8
    weak = [r for r in results if r["labels"]["arm"] != "attention"]
    results, more = made_up(reduced, {**order_of_arms, "attention": 0.15})
    weak += [r for r in results if r["labels"]["arm"] == "attention"]
    mixed = scores | {name: kept for name, kept in more.items() if "/attention/" in name}
    told = claims_text(judge(load_claims(PACKAGE), weak, mixed, "reduced"), "reduced")
    assert told.count("| not informative ") == 8
    assert (
        "G3 (attention reaches an F1 of 20 % on SQuAD with every seed): it reached" in told
    )


def test_too_little_memory_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("everyformer.experiments.cell.train", full)
    places: dict[str, Any] = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    with pytest.raises(TrainingError, match="--set accumulation=4"):
        reproduce(MIXERS_BERT, "smoke", **places, only=["mlm/light/0"])


def numbers(folder: Path) -> dict[str, tuple[Any, dict[str, np.ndarray]]]:
    """What a report says of each cell, and its scores."""
    path = results_path(folder / "out", MIXERS_BERT, "smoke")
    scores = load_scores(scores_path(path))
    found: dict[str, tuple[Any, dict[str, np.ndarray]]] = {}
    for r in load_report(path)["results"]:
        name = "/".join(map(str, r["labels"].values()))
        kept = {name: r[name] for name in ("value_sampled", "complete")}
        kept |= {"curve": r["more"]["curve"], "test": r["more"]["test"]}
        found[name] = (kept, scores[name])
    return found


def test_killed_and_resumed_runs_give_the_same_bits(
    folder: Path, smoke: Path, tmp_path: Path
) -> None:
    """kill -9 in pre-training, and again in fine-tuning."""
    script = Path(__file__).with_name("kills.py")
    paths = [str(script.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    run_program(sys.executable, script, tmp_path, folder, env=os.environ | given)
    smoke_run(tmp_path, folder)
    whole, cut = numbers(smoke), numbers(tmp_path)
    assert tuple(cut) == KILLED
    for name, (result, scores) in cut.items():
        assert json.dumps(result) == json.dumps(whole[name][0])
        assert scores.keys() == whole[name][1].keys()
        for metric, values in scores.items():
            assert np.array_equal(values, whole[name][1][metric]), (name, metric)
