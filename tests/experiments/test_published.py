"""The tables of docs/experiments.md are what the stored results say, number by number."""

import json
import re
import statistics
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from everyformer.experiments.document import document
from everyformer.experiments.registry import experiment_by_name
from everyformer.experiments.stored import Stored

ROOT = Path(__file__).parents[2]
SLOW = ("mixers-bert_reduced", "urpe-lengths")
"""Ten thousand draws of thousands of clusters, comparison by comparison."""
Run = Mapping[str, Any]


@cache
def page() -> frozenset[str]:
    """The rows of all tables, their cells one space apart."""
    lines = (ROOT / "docs/experiments.md").read_text().splitlines()
    return frozenset(re.sub(r"\s*\|\s*", "|", one) for one in lines if one[:1] == "|")


def says(*cells: str) -> None:
    """The page has a table with this row."""
    assert f"|{'|'.join(cells)}|" in page()


@cache
def results(name: str) -> list[Run]:
    return json.loads((ROOT / f"experiments/results/{name}.json").read_text())["results"]


def runs(name: str, **labels: Any) -> list[Run]:
    """Of some labels, seed by seed."""
    found = [r for r in results(name) if labels.items() <= r["labels"].items()]
    return sorted(found, key=lambda r: r["labels"]["seed"])


def value(run: Run) -> float:
    return run["value_sampled"]


def scored(metric: str) -> Callable[[Run], float]:
    return lambda run: run["more"]["test"][metric]["mean_sampled"]


def mean(
    found: list[Run], read: Callable[[Run], float], digits: int, scale: float = 1.0
) -> str:
    """Over seeds, with the standard error where it exceeds the last digit."""
    values = [scale * read(run) for run in found]
    if not values:
        return ""
    told = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return told
    error = statistics.stdev(values) / len(values) ** 0.5
    return told + (f" ± {error:.1g}" if error > 10**-digits else "")


def share(found: list[Run]) -> str:
    told = mean(found, value, 1, 100.0)
    return f"{told} %" if told else ""


@pytest.mark.parametrize(
    ("arm", "told", "plateau"),
    [
        ("attention", "attention", "2,000 to 2,250"),
        ("light-1", "light-1: one layer of convolution, five of attention", "750"),
        ("light-2", "light-2", "500"),
        ("light-4", "light-4", "500"),
        ("light", "light: convolution in all layers", "500"),
        ("bilinear", "bilinear", "750"),
        ("average", "average", "never"),
        ("separable", "separable, one seed", "500"),
    ],
)
def test_mixers(arm: str, told: str, plateau: str) -> None:
    name = "mixers-bert_reduced_nvidia-h200"
    first = runs(name, task="mlm", arm=arm)
    ends = [run["more"]["left_plateau_at"] for run in first]
    reached = sorted({end for end in ends if end is not None})
    assert " to ".join(f"{end:,}" for end in reached) == plateau.replace("never", "")
    says(
        told,
        plateau,
        mean(first, scored("nats"), 2),
        share(first),
        share(runs(name, task="mnli", arm=arm)),
        mean(runs(name, task="squad", arm=arm), value, 1, 100.0),
    )


def test_the_floor_of_mnli() -> None:
    found = runs("mixers-bert_reduced_nvidia-h200", task="hypothesis")
    says("attention, premises hidden, one seed", "", "", "", share(found), "")


@pytest.mark.parametrize(
    ("told", "arms"),
    [
        ("dense (100 %)", ["dense"]),
        (
            "fixed: union, sequential, multihead",
            ["fixed-union", "fixed-sequential", "fixed-multihead"],
        ),
        (
            "strided: multihead, sequential, union",
            ["strided-multihead", "strided-sequential", "strided-union"],
        ),
        ("star (a window), star-first", ["star", "star-first"]),
        ("random, a new draw for each layer", ["random"]),
    ],
)
def test_sparse_lm(told: str, arms: list[str]) -> None:
    found = [runs("sparse-lm_reduced_nvidia-h200", arm=arm) for arm in arms]
    nats = (mean(one, scored("nats"), 3) for one in found)
    says(told, ", ".join(nats), ", ".join(mean(one, value, 0) for one in found))


@pytest.mark.parametrize(
    "arm",
    ["dense", "strided-union", "strided-multihead", "fixed-union", "star", "random"],
)
def test_sparse_glue(arm: str) -> None:
    name = "sparse-glue_reduced_nvidia-h200"
    first = runs(name, task="mlm", arm=arm)
    at = first[0]["more"]["left_plateau_at"]
    says(
        arm,
        "never" if at is None else f"{at:,}",
        mean(first, scored("nats"), 2),
        share(first),
        *(
            mean(runs(name, task=task, arm=arm), value, 1, 100.0)
            for task in ("mnli", "cola", "mrpc", "rte", "sts-b", "sst-2")
        ),
    )


def test_sparse_translation() -> None:
    found = results("sparse-translation_reduced_nvidia-h200")
    assert len(found) == 9
    for run in found:
        more = run["more"]
        test, news = (more["translated"][name] for name in ("test", "news"))
        says(
            run["labels"]["arm"],
            f"{more['density_of_texts']:.1f}",
            f"{value(run):.3f}",
            *(f"{test[name]:.1f}" for name in ("bleu", "chrf")),
            f"{more['news']['nats']:.3f}",
            f"{news['bleu']:.1f}",
        )


@pytest.mark.parametrize("method", ["urpe", "t5", "none"])
@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("etp", "even token prediction (chance 0.5)"),
        ("pi", "position identification (chance 0.125)"),
    ],
)
def test_figure_1(task: str, told: str, method: str) -> None:
    name = "urpe-figure1_small_cpu"
    rates = [runs(name, task=task, method=method, rate=rate) for rate in ("1x", "20x")]
    cells = (", ".join(f"{value(run):.3f}" for run in found) for found in rates)
    says(told if method == "urpe" else "", method, *cells)


@pytest.mark.parametrize(
    "method", ["ape", "t5", "alibi", "rotary", "urpe-clamped", "urpe-bucketed"]
)
def test_lengths(method: str) -> None:
    cells = [
        mean(
            runs("urpe-lengths_small_cpu", task=task, method=method),
            scored(f"{metric}@{length}"),
            2,
        )
        for task, metric in (("copy", "accuracy"), ("text", "nats"))
        for length in (32, 64, 128, 256)
    ]
    says(method, *cells)


@pytest.mark.parametrize("method", ["ape", "swin", "swin+urpe", "swin+c1"])
def test_images(method: str) -> None:
    found = runs("urpe-images_small_cpu", method=method)
    moved = scored("moved")
    each = [", ".join(f"{read(run):.3f}" for run in found) for read in (value, moved)]
    says(method, *each)


@pytest.mark.parametrize("arm", ["graphormer", "gcn", "gat", "gin"])
def test_molecules(arm: str) -> None:
    found = runs("urpe-zinc_small_cpu", arm=arm)
    values = list(map(value, found))
    error = statistics.stdev(values) / len(values) ** 0.5
    says(
        arm,
        f"{found[0]['more']['parameters']:,}",
        f"{statistics.fmean(values):.3f} ± {error:.3f}",
        f"{statistics.fmean(run['more']['best_validation'] for run in found):.3f}",
        ", ".join(f"{run['more']['without_structure']:.2f}" for run in found),
    )


@pytest.mark.parametrize(
    ("arm", "slides", "told"),
    [
        ("graphormer", ".122", "graphormer"),
        ("graphormer+urpe", ".086", "graphormer+urpe"),
        ("graphormer+c1", "", "graphormer+c1, the control"),
    ],
)
def test_molecules_on_a_gpu(arm: str, slides: str, told: str) -> None:
    found = runs("urpe-zinc_reduced_nvidia-h200", arm=arm)
    values = list(map(value, found))
    error = statistics.stdev(values) / len(values) ** 0.5
    hurt = statistics.fmean(run["more"]["without_structure"] for run in found)
    ours = f"{statistics.fmean(values):.3f} ± {error:.3f}".replace("0.", ".")
    says(told, slides, ours, f"{hurt:.0f} times as much")


@pytest.mark.parametrize("arm", ["xl", "xl+urpe", "xl+urpe-layer"])
def test_words(arm: str) -> None:
    found = runs("urpe-wikitext_reduced_nvidia-h200", text="enwiki-words", arm=arm)
    cells: list[str] = []
    for reading in ("nats", "long"):
        nats = scored(reading)
        cells.append(", ".join(f"{nats(run):.4f}" for run in found))
        own = [run["more"]["perplexity"][reading] for run in found]
        cells.append(f"{statistics.fmean(own):.1f}")
    says(arm, *cells)


@pytest.mark.parametrize("size", ["small_cpu", "paper_nvidia-h200"])
def test_copying(size: str) -> None:
    name = f"sparse-copying_{size}"
    for way in {(r["labels"]["pattern"], r["labels"]["configuration"]): r for r in
                results(name)}:  # fmt: skip
        found = {
            run["labels"]["layers"]: run
            for run in runs(name, pattern=way[0], configuration=way[1])
        }
        sparsity = f"{100 * found[1]['more']['sparsity']:.2f} %"
        cells = (f"{100 * value(found[n]):.1f}" if n in found else "" for n in (1, 2, 3, 4))
        says(*way, sparsity, *cells)


def test_gaps() -> None:
    name = "contextual-gap_small_cpu"
    for mixer, stack in {(r["labels"]["mixer"], r["labels"]["stack"]) for r in
                         results(name)}:  # fmt: skip
        cells: list[str] = []
        for depth in (1, 2, 3, 4, 6, 8):
            found = runs(name, mixer=mixer, stack=stack, depth=depth)
            cells.append(f"{statistics.median(map(value, found)):.2g}")
        says(mixer, stack, *cells)


def test_positions_and_even_tokens() -> None:
    found = {
        (r["labels"]["task"], r["labels"]["method"], r["labels"]["tokens"])
        for r in results("urpe-synthetic_small_cpu")
    }
    assert len(found) == 22
    for task, method, tokens in found:
        own = runs("urpe-synthetic_small_cpu", task=task, method=method, tokens=tokens)
        steps = ", ".join(f"{run['more']['steps']:,}" for run in own)
        chance = f"{own[0]['more']['chance']:.4f}"
        each = ", ".join(f"{value(run):.4f}" for run in own)
        says(task, method, str(tokens), chance, steps, each)


def test_positions_and_even_tokens_on_a_gpu() -> None:
    for run in results("urpe-synthetic_paper_nvidia-h200"):
        labels, error = run["labels"], run["standard_error_sampled"]
        start = [labels["task"], labels["method"], str(labels["tokens"])]
        start += [f"{run['more']['steps']:,}", f"{run['more']['wall_s']:.0f}"]
        own = f"{value(run):.4f}" + (f" ± {error:.1g}" if error else "")
        (row,) = [one for one in page() if one.startswith(f"|{'|'.join(start)}|")]
        assert row.split("|")[7] == own


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted((ROOT / "experiments/results").glob("*.md"))
        if not path.name.startswith(SLOW)
    ],
    ids=lambda path: path.stem,
)
def test_a_document_is_what_its_results_say(path: Path) -> None:
    """Means, errors, intervals, p and verdicts of the document beside the results."""
    stored = Stored.load(path.with_suffix(".json"))
    experiment = experiment_by_name(stored.report["experiment"])
    assert document(experiment, stored.report, stored.scores) == path.read_text()
