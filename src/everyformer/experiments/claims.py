"""Claims of a paper, and what runs of a stated size say about them.

`claims.json` of an experiment holds the rules, fixed before the first run that is judged:

    label     the label of a cell that names its arm
    gates     what a run must reach before it says anything: id, text, cell, arm, metric,
              and at_least or at_most; every seed must reach it. May have: relative_to (a
              metric that the other is divided by), split (on which set; "test"). Or, with
              at_most_median, a cell and arms: the mean over seeds must not be above the
              median of theirs, of those that were run
    chosen    arms that are chosen by a number that no claim looks at: name, of, cell,
              metric, direction; by the mean on the validation set
    claims    id, text, source, cell, metric, direction ("higher" or "lower" is better),
              comparisons (pairs of arms, the first better), clusters (what examples are
              drawn by), gates, sizes (of the runs that are judged), orders (cells at other
              rates: where an order of arms flips there, the claim stays undecided). May
              have: margin (how much better the first must be; 0), if_flipped (what is said
              where an order flips, instead of "undecided"), least_relative (the share of
              the second's mean by which the first must be better: a claim that else holds
              with less is "smaller than claimed"), drawn (true: shown and never judged,
              however many seeds there are)

A claim with several comparisons holds if all do: its p is the largest, without correction
inside. It is contradicted if one comparison is the other way round: there the smallest p is
multiplied by the number of comparisons. Both are adjusted by Holm over all claims of that
size; a claim whose runs are missing counts as one, one that is only drawn does not.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from everyformer.errors import FileFormatError
from everyformer.experiments.arrays import name_of
from everyformer.experiments.cell import conditions_hash
from everyformer.experiments.scores import Runs, Scores
from everyformer.experiments.statistics import LEVEL, Difference, difference, holm

LEAST_SEEDS = 3
"""With fewer a claim is drawn, not judged."""

FIELDS = {
    "gates": {"id", "text", "cell", "arm", "metric"},
    "chosen": {"name", "of", "cell", "metric", "direction"},
    "claims": {
        "id", "text", "source", "cell", "metric", "direction", "comparisons", "clusters",
        "gates", "sizes", "orders",
    },
}  # fmt: skip
OPTIONAL = {
    "gates": {"at_least", "at_most", "at_most_median", "relative_to", "split"},
    "chosen": set[str](),
    "claims": {"margin", "if_flipped", "least_relative", "drawn"},
}
LIMITS = {"at_least", "at_most", "at_most_median"}
SIGNS = {"higher": 1.0, "lower": -1.0}


@dataclass(frozen=True)
class Claims:
    """The file `claims.json`."""

    label: str
    gates: tuple[Mapping[str, Any], ...]
    chosen: tuple[Mapping[str, Any], ...]
    claims: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Compared:
    """One comparison of a claim.

    Attributes:
        better: The arm that is better as claimed.
        worse: The other.
        found: Its effect is positive where `better` is better; None if a run is missing.
        missing: Which.
    """

    better: str
    worse: str
    found: Difference | None
    missing: str = ""


@dataclass(frozen=True)
class Judgement:
    """What is said about a claim.

    Attributes:
        claim: As in the file.
        compared: Its comparisons.
        p: Adjusted, against "not all comparisons are as claimed"; None if not judged.
        verdict: holds, contradicted, undecided, not informative, what the claim says of an
            order that flips, or why nothing is said: "drawn, 2 seeds", "not run".
        notes: Gates that failed, orders that flip, arms that look the same, what is
            missing.
        least_effect: That would have been seen in each of the comparisons; None if not
            judged.
    """

    claim: Mapping[str, Any]
    compared: tuple[Compared, ...]
    p: float | None
    verdict: str
    notes: tuple[str, ...]
    least_effect: float | None


def load_claims(package: str) -> Claims:
    """The file `claims.json` beside the modules of an experiment.

    Raises:
        FileFormatError: If an entry lacks a field, has an unknown one, or names a gate
            that does not exist.
    """
    return read_claims(json.loads((files(package) / "claims.json").read_text()), package)


def read_claims(stored: Mapping[str, Any], source: str) -> Claims:
    """Claims from what JSON holds; `source` is named in errors.

    Raises:
        FileFormatError: As `load_claims`.
    """
    gates = {gate["id"] for gate in stored["gates"]}
    for kind, wanted in FIELDS.items():
        for entry in stored[kind]:
            known = entry.get("direction", "higher") in SIGNS
            named = set(entry.get("gates", ())) <= gates
            whole = wanted <= entry.keys() <= wanted | OPTIONAL[kind]
            if kind == "gates":
                whole = whole and len(LIMITS & entry.keys()) == 1
            if not (whole and known and named):
                msg = (
                    f"claims.json of {source} has in {kind} the entry {entry}: it needs "
                    f"exactly {', '.join(sorted(wanted))} (of gates also one of at_least, "
                    "at_most and at_most_median), a direction of "
                    f"{', '.join(SIGNS)}, and gates of {', '.join(sorted(gates))}."
                )
                raise FileFormatError(msg)
    kinds = [tuple(stored[kind]) for kind in ("gates", "chosen", "claims")]
    return Claims(stored["label"], *kinds)


def judge(
    claims: Claims, results: Sequence[Mapping[str, Any]], scores: Scores, size: str
) -> list[Judgement]:
    """What the results of a size say about each claim that is judged at that size.

    Raises:
        FileFormatError: If scores and results are not of one run.
    """
    runs = Runs(claims.label, results, scores)
    arms = {choice["name"]: _chosen(choice, runs) for choice in claims.chosen}
    family = [claim for claim in claims.claims if size in claim["sizes"]]
    found = [_compared(claim, runs, arms) for claim in family]
    judged = [k for k, claim in enumerate(family) if not claim.get("drawn", False)]
    as_claimed, one_reversed = (
        dict(zip(judged, holm([p_of(found[k]) for k in judged]), strict=True))
        for p_of in (_p_all, _p_one_reversed)
    )
    return [
        _judgement(
            claim, compared, as_claimed.get(k, 1.0), one_reversed.get(k, 1.0), claims,
            runs, len(judged),
        )
        for k, (claim, compared) in enumerate(zip(family, found, strict=True))
    ]  # fmt: skip


def gate_failure(gate: Mapping[str, Any], runs: Runs) -> str | None:
    """Why a gate is shut, or None if every seed reached it."""
    found = runs.of(gate["cell"], gate["arm"]).values()
    values = [_of_gate(gate, result) for result in found]
    if "at_most_median" in gate:
        return _above_median(gate, values, runs)
    upper = "at_most" in gate
    worst = max(values, default=0.0) if upper else min(values, default=0.0)
    limit = gate["at_most"] if upper else gate["at_least"]
    if values and (worst <= limit if upper else worst >= limit):
        return None
    reached = f"it reached {worst:.3g}" if values else "it was not run"
    return f"{gate['id']} ({gate['text']}): {reached}"


def _above_median(
    gate: Mapping[str, Any], values: Sequence[float], runs: Runs
) -> str | None:
    """Why the mean of some runs is above the median of other arms' means."""
    of = gate["at_most_median"]
    others = [runs.of(of["cell"], arm).values() for arm in of["arms"]]
    own = runs.of(gate["cell"], gate["arm"]).values()
    if not _comparable([*own, *(result for arm in others for result in arm)]):
        return f"{gate['id']} ({gate['text']}): runs with equal settings are missing"
    means = [statistics.fmean(_of_gate(gate, r) for r in arm) for arm in others if arm]
    if not values or not means:
        missing = gate["arm"] if not values else "the arms that it is compared with"
        return f"{gate['id']} ({gate['text']}): {missing} was not run"
    mean, median = statistics.fmean(values), statistics.median(means)
    if mean <= median:
        return None
    return f"{gate['id']} ({gate['text']}): {mean:.4g} against a median of {median:.4g}"


def _of_gate(gate: Mapping[str, Any], result: Mapping[str, Any]) -> float:
    """What a gate looks at: a mean on a set, or the quotient of two."""
    test = result["more"][gate.get("split", "test")]
    value: float = test[gate["metric"]]["mean_sampled"]
    if "relative_to" in gate:
        value /= test[gate["relative_to"]]["mean_sampled"]
    return value


def _chosen(choice: Mapping[str, Any], runs: Runs) -> str | None:
    """The arm that is best on the validation set; the first of equals."""
    cell, arms = choice["cell"], choice["of"]
    seeds = _shared_seeds(cell, arms, runs)
    if not seeds:
        return None
    sign, metric = SIGNS[choice["direction"]], choice["metric"]
    return max(
        arms, key=lambda arm: sign * runs.mean(cell, arm, metric, "validation", seeds)
    )


def _shared_seeds(cell: Mapping[str, Any], arms: Sequence[str], runs: Runs) -> set[int]:
    """The seeds that all of the arms have; none if their runs cannot be compared."""
    found = [runs.of(cell, arm) for arm in arms]
    seeds = set.intersection(*map(set, found))
    used = [of_arm[seed] for of_arm in found for seed in seeds]
    return seeds if _comparable(used) else set()


def _comparable(results: Sequence[Mapping[str, Any]]) -> bool:
    """Whether runs differ in nothing but their seeds and arms."""
    return len({conditions_hash(run.get("settings", {})) for run in results}) <= 1


def _compared(
    claim: Mapping[str, Any], runs: Runs, arms: Mapping[str, str | None]
) -> tuple[Compared, ...]:
    made: list[Compared] = []
    for pair in claim["comparisons"]:
        better, worse = (arms.get(arm, arm) for arm in pair)
        if better is None or worse is None:
            missing = "an arm that is chosen by runs not done with equal settings"
            made.append(Compared(pair[0], pair[1], None, missing))
        else:
            made.append(_pair(claim, better, worse, runs))
    return tuple(made)


def _pair(claim: Mapping[str, Any], better: str, worse: str, runs: Runs) -> Compared:
    """The comparison of two arms over the seeds that both have."""
    found = [runs.of(claim["cell"], arm) for arm in (better, worse)]
    seeds = sorted(found[0].keys() & found[1].keys())
    name = name_of(claim["cell"])
    if not seeds:
        arm = better if not found[0] else worse
        return Compared(better, worse, None, f"{name}/{arm}")
    if not _comparable([of_arm[seed] for of_arm in found for seed in seeds]):
        missing = f"{name}: runs of {better} and {worse} with equal settings"
        return Compared(better, worse, None, missing)
    values: list[np.ndarray] = []
    clusters: list[np.ndarray] = []
    for of_arm, arm in zip(found, (better, worse), strict=True):
        rows = [runs.scored(of_arm[seed], claim["metric"]) for seed in seeds]
        drawn = [runs.clusters(of_arm[seed]) for seed in seeds]
        if any(row is None for row in (*rows, *drawn)):
            return Compared(better, worse, None, f"the scores of {name}/{arm}")
        values.append(np.stack([row for row in rows if row is not None]))
        clusters += [row for row in drawn if row is not None]
    if not all(np.array_equal(clusters[0], other) for other in clusters):
        missing = f"{name}: runs of {better} and {worse} with the same test examples"
        return Compared(better, worse, None, missing)
    sign = SIGNS[claim["direction"]]
    least = claim.get("margin", 0.0)
    effect = difference(sign * values[0] - least, sign * values[1], clusters[0])
    return Compared(better, worse, effect)


def _tested(compared: Sequence[Compared]) -> list[Difference]:
    """All differences, or none where a run is missing or seeds are too few."""
    found = [c.found for c in compared if c.found and c.found.seeds >= LEAST_SEEDS]
    return found if len(found) == len(compared) else []


def _p_all(compared: Sequence[Compared]) -> float:
    return max((d.p_greater or 0.0 for d in _tested(compared)), default=1.0)


def _p_one_reversed(compared: Sequence[Compared]) -> float:
    found = [d.p_less or 0.0 for d in _tested(compared) if d.high_sampled < 0]
    return min(1.0, len(compared) * min(found, default=1.0))


def _judgement(
    claim: Mapping[str, Any],
    compared: tuple[Compared, ...],
    p: float,
    p_reversed: float,
    claims: Claims,
    runs: Runs,
    family: int,
) -> Judgement:
    lacking = (f"missing: {c.missing}" for c in compared if c.found is None)
    missing = tuple(dict.fromkeys(lacking))
    if missing:
        return Judgement(claim, compared, None, "not run", missing, None)
    named = [gate for gate in claims.gates if gate["id"] in claim["gates"]]
    shut = [reason for gate in named if (reason := gate_failure(gate, runs))]
    flips = _flips(claim, compared, runs)
    notes = (*shut, *flips, *_twins(compared))
    found = _tested(compared)
    if shut:
        return Judgement(claim, compared, None, "not informative", notes, None)
    if not found or claim.get("drawn", False):
        seeds = min(c.found.seeds for c in compared if c.found)
        said = f": {claim['if_flipped']}" if flips and "if_flipped" in claim else ""
        drawn = f"drawn, {seeds} seeds{said}"
        return Judgement(claim, compared, None, drawn, notes, None)
    least = max(d.least_effect(LEVEL / family) or 0.0 for d in found)
    seen = p < LEVEL and all(d.low_sampled > 0 for d in found)
    verdict = "holds" if seen else "contradicted" if p_reversed < LEVEL else "undecided"
    if small := _too_small(claim, compared, runs):
        notes = (*notes, *small)
        verdict = "smaller than claimed" if seen else verdict
    if flips or _twins(compared):
        verdict = claim.get("if_flipped", "undecided") if flips else "undecided"
    return Judgement(claim, compared, p, verdict, notes, least)


def _too_small(
    claim: Mapping[str, Any], compared: Sequence[Compared], runs: Runs
) -> tuple[str, ...]:
    """Comparisons whose effect is less than the share of the second's mean claimed."""
    least, told = claim.get("least_relative", 0.0), list[str]()
    for c in compared:
        seeds = runs.of(claim["cell"], c.better).keys() & runs.of(claim["cell"], c.worse)
        if not least or c.found is None:
            continue
        mean = runs.mean(claim["cell"], c.worse, claim["metric"], "test", set(seeds))
        share = c.found.effect_sampled / abs(mean)
        if share < least:
            told.append(
                f"{c.better} is better than {c.worse} by {share:.1%}, and {least:.0%} is "
                "claimed"
            )
    return tuple(told)


def _flips(
    claim: Mapping[str, Any], compared: Sequence[Compared], runs: Runs
) -> tuple[str, ...]:
    """Comparisons whose order is another at another rate."""
    told: list[str] = []
    sign, metric = SIGNS[claim["direction"]], claim["metric"]
    margin = claim.get("margin", 0.0)
    for cell in claim["orders"]:
        for c in compared:
            arms = (c.better, c.worse)
            seeds = _shared_seeds(cell, arms, runs)
            if not seeds or c.found is None:
                continue
            one, other = (runs.mean(cell, arm, metric, "test", seeds) for arm in arms)
            beyond = sign * (one - other) - margin
            if beyond * c.found.effect_sampled < 0:
                name = name_of(cell)
                told.append(
                    f"in {name} {c.better} is {'' if beyond > 0 else 'not '}better than "
                    f"{c.worse} by {margin:g}: {one:.4f} against {other:.4f}"
                    if margin
                    else f"{c.better} and {c.worse} change places in {name}"
                )
    return tuple(told)


def _twins(compared: Sequence[Compared]) -> tuple[str, ...]:
    return tuple(
        f"{c.better} and {c.worse} have equal scores on too many examples: is this one run?"
        for c in compared
        if c.found is not None and c.found.same
    )
