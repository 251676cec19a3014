"""What speaks against a proof: nothing is PROVED of a module while any of this does.

A proof from structure says what some weights can do. The module itself must show it: every
obstacle is violated by some weights that were drawn, no rearrangement of the tokens that is
tried commutes with all draws, its attention moves with the tokens and its row sums differ,
and its operations do not say the contrary.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from everyformer.checks.finding import Finding
from everyformer.checks.rule import Rule
from everyformer.checks.rules import position_aware
from everyformer.checks.subject import Subject
from everyformer.checks.universality import ZERO, keeps_zero

MAX_SWAPS = 64
ROUNDING = 1e-12
"""Distances below this, of numbers about 1, are rounding."""


def against(
    subject: Subject,
    rules: Sequence[Rule],
    findings: Sequence[Finding],
    trials: int,
    seed: int,
) -> list[str]:
    """Reasons not to believe that a module is universal in L^p, each in words."""
    found: list[str] = []
    rules, findings = _that_count(subject, rules, findings)
    for rule, one in zip(rules, findings, strict=True):
        if rule.kind == "obstacle" and one.counterexample is None:
            found.append(
                f"no weights that were drawn violate {one.code} {one.name}: {one.reason}"
            )
    if found:
        return found
    return [
        *_operations(subject, rules),
        *_rearrangements(subject, trials, seed),
        *_row_sums(subject, trials, seed),
        *_still_weights(subject, trials, seed),
    ]


def _that_count(
    subject: Subject, rules: Sequence[Rule], findings: Sequence[Finding]
) -> tuple[Sequence[Rule], Sequence[Finding]]:
    """All rules and findings, without EF007 where feed-forward layers have biases."""
    if keeps_zero(subject.structure, alone=not subject.feed_forward):
        return rules, findings
    return (
        [rule for rule in rules if rule.code != ZERO],
        [finding for finding in findings if finding.code != ZERO],
    )


def _operations(subject: Subject, rules: Sequence[Rule]) -> Iterator[str]:
    """Obstacles that hold, and conditions that fail, by the operations of the module.

    Where positions are added to the tokens, the proof does not need row sums.
    """
    spec = subject.structure
    for rule in rules:
        if rule.by_operations is None or rule.kind == "measure":
            continue
        if rule is position_aware.RULE and spec is not None and spec.absolute:
            continue
        answer = rule.by_operations(subject.followed)
        if answer.holds is (rule.kind == "obstacle"):
            holds = "holds" if answer.holds else "fails"
            yield f"by its operations {rule.code} {rule.name} {holds}: {answer.reason}"


def _rearrangements(subject: Subject, trials: int, seed: int) -> Iterator[str]:
    """Rearrangements P with g(P X) = P g(X) in all draws: the layer does not see them."""
    n = subject.seq_len
    X = np.random.default_rng(seed).standard_normal((n, subject.d_model))
    named = dict(rearrangements(n))
    worst = dict.fromkeys(named, 0.0)
    for trial in subject.trials(trials, seed):
        moved = trial.outputs(np.stack([X[order] for order in named.values()]))
        out = trial.output(X)
        size = max(1.0, float(np.abs(out).max()))
        for (name, order), one in zip(named.items(), moved, strict=True):
            broken = float(np.abs(one - out[order]).max()) / size
            worst[name] = max(worst[name], broken)
    for name, broken in worst.items():
        if not broken > subject.violated:
            yield f"{name} commutes with it in all draws, but for {broken:.2g}"


def rearrangements(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """The reversal, all shifts, and swaps of two tokens, or so many of them."""
    places = np.arange(n)
    yield "reversal", places[::-1].copy()
    for by in range(1, min(n, MAX_SWAPS)):
        yield f"a shift by {by}", np.roll(places, by)
    pairs = [(i, j) for j in range(n) for i in range(j)]
    for i, j in pairs[:: -(-len(pairs) // MAX_SWAPS)]:
        swapped = places.copy()
        swapped[[i, j]] = j, i
        yield f"a swap of tokens {i + 1} and {j + 1}", swapped


def _row_sums(subject: Subject, trials: int, seed: int) -> Iterator[str]:
    """Row sums that agree in all draws, where a gain is to tell them apart."""
    spec = subject.structure
    if spec is not None and spec.mixing != "attention":
        return  # mixers need no row sums
    sums = position_aware.row_sums(subject, trials, seed)
    if spec is not None and not spec.absolute and sums is not None and sums[0] <= ROUNDING:
        yield f"row sums of A are at most {sums[0]:.2g} apart in all draws"


def _still_weights(subject: Subject, trials: int, seed: int) -> Iterator[str]:
    """Weights of attention that are the same for two inputs, in all draws."""
    spec = subject.structure
    if spec is not None and spec.mixing != "attention":
        return  # weights of mixers never move
    X, Y = np.random.default_rng(seed).standard_normal(
        (2, subject.seq_len, subject.d_model)
    )
    moved = [
        float(np.abs(A - again).max())
        for trial in subject.trials(trials, seed)
        for A, again in zip(trial.matrices(X), trial.matrices(Y), strict=True)
    ]
    if moved and max(moved) <= ROUNDING:
        yield f"A moves by at most {max(moved):.2g} with X in all draws"
