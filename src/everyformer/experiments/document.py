"""The table beside a file of results, as a document: what was run, and what it says."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from everyformer.experiments.arrays import name_of
from everyformer.experiments.cell import conditions_hash
from everyformer.experiments.claims import Judgement, judge
from everyformer.experiments.experiment import (
    Experiment,
    entry_of,
    markdown,
    number,
    with_error,
)
from everyformer.experiments.scores import Scores

MARGINS = " Where a claim has a margin, the effect is what goes beyond it."


def document(experiment: Experiment, report: Mapping[str, Any], scores: Scores) -> str:
    """Where and when, the results, the claims, what was not run, and notes."""
    results, size = report["results"], report["size"]
    parts = [_heading(experiment, report)]
    if experiment.claims is None:
        parts.append(markdown(*experiment.table(results, size)))
    else:
        parts.append(markdown(*seeded_table(experiment, results, size)))
        judged = judge(experiment.claims, results, scores, size)
        parts += [claims_text(judged, size)]
    if experiment.summary is not None:
        parts.append(experiment.summary(results, size))
    skipped: Mapping[str, str] = report.get("skipped", {})
    if skipped:
        told = (f"- {name}: {reason}" for name, reason in skipped.items())
        parts.append("Not run:\n\n" + "\n".join(told))
    notes = [*mixed_arithmetic(results), *experiment.notes(results)]
    parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def mixed_arithmetic(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note where rows of one table were not computed alike: their last digits may differ.

    A run keeps in whose arithmetic its updates were done (`train.arithmetic`).
    """
    kept: list[Mapping[str, str]] = [r["more"].get("arithmetic", {}) for r in results]
    moved = sum(len(of) > 1 for of in kept)
    ways = list(dict.fromkeys(way for of in kept for way in of.values()))
    if len(ways) <= 1:
        return []
    went_on = f"; {moved} of {len(kept)} runs went on in another than they began in"
    return [
        f"Updates were computed in {len(ways)} ways: {'; '.join(ways)}"
        f"{went_on if moved else ''}. The order of sums differs, so a run again ends with "
        "the same bits in the same arithmetic alone."
    ]


def _heading(experiment: Experiment, report: Mapping[str, Any]) -> str:
    first = report["environment"]
    made = [first | result for result in report["results"]] or [first]
    days = sorted(m["date"][:10] for m in made)
    dates = dict.fromkeys((days[0], days[-1]))
    commits = dict.fromkeys((m["commit"] or "unknown")[:12] for m in made)
    scope = experiment.expected.size.get(report["size"])
    shared = ", summed over processes that may have shared it" if "joined" in report else ""
    return (
        f"{experiment.name}, size {report['size']}: {experiment.expected.quantity}. "
        f"{f'{scope} ' if scope else ''}"
        f"{first['gpu'] or first['cpu']}, {' to '.join(dates)}, commit "
        f"{', '.join(commits)}, {report.get('wall_s', 0.0):,.0f} s of training{shared}."
    )


def seeded_table(
    experiment: Experiment, results: Sequence[Mapping[str, Any]], size: str
) -> tuple[list[str], list[list[str]]]:
    """A row for the runs that differ in the seed alone.

    Ours is their mean with its standard error over seeds, and their number in brackets;
    one run has the standard error of its examples. Runs of other settings are a row of
    their own. Beside runs that show no more than that
    everything runs, the paper's numbers would be read as a comparison: they are left out.
    """
    names = [
        n for n in dict.fromkeys(n for r in results for n in r["labels"]) if n != "seed"
    ]
    groups: dict[tuple[tuple[str, ...], str], list[Mapping[str, Any]]] = {}
    for result in results:
        key = tuple(str(result["labels"].get(name, "")) for name in names)
        made = conditions_hash(result["settings"])
        groups.setdefault((key, made), []).append(result)
    rows: list[list[str]] = []
    for (key, _), runs in groups.items():
        entry = experiment.expected.of(runs[0]["labels"])
        row = [*key, *(_mean_of(runs, name) for name in experiment.columns)]
        shown = size in ("reduced", "paper")
        row += [number(entry["paper"] if entry and shown else None), _ours(runs)]
        said = [] if experiment.conditions is None else map(experiment.conditions, runs)
        rows.append([*row, " / ".join(dict.fromkeys(said))])
    headings = [*names, *experiment.columns.values(), "paper", "ours ± s.e. (seeds)"]
    return [*headings, "conditions"], rows


def _mean_of(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    """The mean over seeds, of numbers; what all runs have in common, else."""
    found = [entry_of(run["more"], name) for run in runs]
    if any(isinstance(value, float) for value in found):
        return number(statistics.fmean(value for value in found if value is not None))
    return ", ".join(dict.fromkeys(number(value) for value in found))


def _ours(runs: Sequence[Mapping[str, Any]]) -> str:
    early = "" if all(run["complete"] for run in runs) else ", stopped early"
    values = [run["value_sampled"] for run in runs]
    if len(values) == 1:
        return f"{with_error(runs[0])} (1{early})"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{number(statistics.fmean(values))} ± {error:.1g} ({len(values)}{early})"


def claims_text(judged: Sequence[Judgement], size: str) -> str:
    """The table of claims, a row for each comparison, and the notes below it."""
    if not judged:
        return f"Claims are not judged at size {size}."
    rows: list[list[str]] = []
    for judgement in judged:
        claim = judgement.claim
        for place, compared in enumerate(judgement.compared):
            found = compared.found
            margin = f" by {claim['margin']:g}" if claim.get("margin") else ""
            what = f"{claim['id']} {compared.better} better than {compared.worse}{margin}"
            effect = interval = ""
            if found is not None:
                effect = f"{found.effect_sampled:+.4f}"
                interval = f"{found.low_sampled:+.4f} to {found.high_sampled:+.4f}"
            once = (claim["source"], number(judgement.p), judgement.verdict)
            source, p, verdict = once if place == 0 else ("", "", "")
            metric = f"{name_of(claim['cell'])} {claim['metric']}"
            rows.append([what, source, metric, effect, interval, p, verdict])
    margins = any(judgement.claim.get("margin") for judgement in judged)
    headings = ["claim", "source", "metric", "effect", "95 % interval", "p", "verdict"]
    text = [
        "An effect is positive where the claim has it. The interval is over clusters of "
        "examples, p over seeds (paired, one-sided, Holm over all claims): both must agree "
        "before anything is said to hold." + (MARGINS if margins else ""),
        markdown(headings, rows),
        "\n".join(_notes(judged)),
    ]
    return "\n\n".join(part for part in text if part)


def _notes(judged: Sequence[Judgement]) -> list[str]:
    told: list[str] = []
    for judgement in judged:
        claim = judgement.claim
        about = f"- {claim['id']}: {claim['text']}"
        if judgement.verdict == "undecided" and judgement.least_effect is not None:
            about += f". An effect of {judgement.least_effect:.4f} would have been seen"
        notes = [f" {note}." for note in judgement.notes]
        told.append(f"{about}.{''.join(notes)}")
    return told
