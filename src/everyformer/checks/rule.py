"""What a rule is, and how it comes to its verdict."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from everyformer.checks.finding import Counterexample, Finding, How, Kind
from everyformer.checks.following.walk import Followed
from everyformer.checks.precision import VIOLATED as VIOLATED
from everyformer.checks.subject import Subject, Trial
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import Citation
from everyformer.verdict import Verdict

SURELY = 1e-3
"""A violation beyond this counts also against a proof."""

SECTIONS = ("What it checks", "Why it matters", "Satisfied by", "Violated by", "Source")


@dataclass(frozen=True)
class Answer:
    """What structure says: whether the property holds for all weights, and why."""

    holds: bool | None
    reason: str
    pair: tuple[int, int] | None = None
    """Tokens (k, j), 0-based, that show it."""

    nearly: str = ""
    """The one thing that keeps it from holding, such as a mask that is finite."""


@dataclass(frozen=True)
class Search:
    """How to look for a counterexample.

    Attributes:
        inputs: Inputs to try, from a generator, n and d.
        violation: By how much the property fails on an input with some weights, relative
            to the size of the output; None if this cannot be seen from outside.
        admits: Whether an input can be a counterexample at all.
    """

    inputs: Callable[[np.random.Generator, int, int], Iterator[np.ndarray]]
    violation: Callable[[Trial, np.ndarray], float | None]
    admits: Callable[[np.ndarray], bool] = lambda X: True


@dataclass(frozen=True)
class Rule:
    """A property of attention layers and of stacks of them.

    Attributes:
        code: Such as EF003.
        name: In words, with hyphens.
        kind: "obstacle": where it holds, a layer is not universal; "condition": where it
            holds, Theorem 3 of Luo et al. 2022 may apply; "measure": neither.
        text: The sections of `SECTIONS`.
        source: The result behind it.
        by_structure: The answer for all layers of a spec, at a length n.
        by_operations: Why it holds or fails, from facts that hold for all weights.
        search: How counterexamples are found; None where one input proves nothing.
        measure: What trials show of a property that says "there are weights", in words.
    """

    code: str
    name: str
    kind: Kind
    text: str | None
    source: Citation | str
    by_structure: Callable[[AttentionSpec, int], Answer]
    by_operations: Callable[[Followed], Answer] | None = None
    search: Search | None = None
    measure: Callable[[Subject, int, int], str] | None = None


def judge(rule: Rule, subject: Subject, trials: int, seed: int) -> Finding:
    """The verdict of a rule.

    PROVED comes from structure or from operations alone, never from trials. A violation
    that is found wins over what a module says of itself. Where structure says that some
    weights violate the rule and none were found, operations are asked.
    """
    example, largest, draws = _look_for_violation(rule, subject, trials, seed)
    tried = _in_words(rule, largest, draws)
    answer, how = _answer(rule, subject)
    if how == "structure" and answer.holds is False and example is None:
        answer, how = _unseen(rule, subject, answer)
    said = _declared(rule, subject)

    def found(verdict: Verdict, how: How, reason: str) -> Finding:
        shown = example if verdict is Verdict.REFUTED else None
        pair = answer.pair if verdict is Verdict.PROVED else None
        about = (rule.code, rule.name, verdict, how, reason, str(rule.source))
        nearly = answer.nearly if verdict is Verdict.UNKNOWN else ""
        return Finding(*about, largest, shown, pair=pair, kind=rule.kind, nearly=nearly)

    if example is not None and answer.holds:
        if example.violation_sampled < max(SURELY, subject.violated):
            reason = f"{tried}: rounding, or its {how} is wrong: {answer.reason}"
            return found(Verdict.UNKNOWN, "nothing", reason)
        reason = f"{tried}, although its {how} says otherwise: {answer.reason}"
        return replace(found(Verdict.REFUTED, "counterexample", reason), contradicts=how)
    if example is not None and said is not None and said.holds:
        reason = f"{tried}, although its spec() says otherwise: {said.reason}"
        return found(Verdict.REFUTED, "counterexample", reason)
    if example is not None:
        reason = tried if answer.holds is None else answer.reason
        return found(Verdict.REFUTED, "counterexample", reason)
    if answer.holds:
        return found(Verdict.PROVED, how, answer.reason)
    if answer.holds is False and (rule.search is None or subject.module is None):
        return found(Verdict.REFUTED, how, answer.reason)
    if rule.measure is not None and subject.module is not None:
        tried = rule.measure(subject, trials, seed)
    parts = [part for part in (answer.reason, tried) if part]
    if said is not None and said.holds is not None:
        parts.append(f"its spec() does not count ({subject.doubt})")
    return found(Verdict.UNKNOWN, "nothing", "; ".join(parts) or "nothing is known")


def _answer(rule: Rule, subject: Subject) -> tuple[Answer, How]:
    """What structure says, or, where that decides nothing, operations.

    A spec that does not count for the module is a declaration: it is only told.
    """
    answer: Answer = Answer(None, "")
    how: How = "nothing"
    spec = subject.structure
    if spec is not None:
        answer, how = rule.by_structure(spec, subject.seq_len), "structure"
    decided = answer.holds is not None or (spec and rule.kind != "obstacle")
    if not decided and rule.by_operations is not None:
        again = rule.by_operations(subject.followed)
        if again.holds is not None or not answer.reason:
            answer, how = again, "operations"
    return answer, how


def _unseen(rule: Rule, subject: Subject, answer: Answer) -> tuple[Answer, How]:
    """What operations say where structure promises violations that were not found."""
    if rule.search is not None and rule.by_operations and subject.module is not None:
        again = rule.by_operations(subject.followed)
        if again.holds:
            return again, "operations"
    return answer, "structure"


def _declared(rule: Rule, subject: Subject) -> Answer | None:
    """What a spec says that does not count; None without a spec, or if it counts."""
    if subject.spec is None or subject.structure is not None:
        return None
    return rule.by_structure(subject.spec, subject.seq_len)


def _look_for_violation(
    rule: Rule, subject: Subject, trials: int, seed: int
) -> tuple[Counterexample | None, float | None, int]:
    """The worst input of the trials, if it is a counterexample; its violation; the draws.

    It is measured again, on copies that were not run before.
    """
    if rule.search is None:
        return None, None, 0
    worst, draws = _worst(rule, subject, subject.trials(trials, seed), seed)
    if worst is not None and worst.violation_sampled > subject.violated:
        again = rule.search.violation(subject.alone(worst.seed), worst.input)
        if again is not None and again > subject.violated:
            worst = replace(worst, violation_sampled=float(again))
        else:
            tried = [trial.seed for trial in subject.trials(trials, seed)]
            worst, draws = _worst(rule, subject, map(subject.alone, tried), seed)
    if worst is None:
        return None, None, draws
    size = worst.violation_sampled
    return (worst if size > subject.violated else None), size, draws


def _worst(
    rule: Rule, subject: Subject, trials: Iterable[Trial], seed: int
) -> tuple[Counterexample | None, int]:
    """The input with the largest violation that could be measured, and the draws it took.

    One that is beyond doubt ends the search: other weights would not say more.
    """
    assert rule.search is not None, "rules without a search have no inputs"  # noqa: S101
    worst: Counterexample | None = None
    rng = np.random.default_rng(seed)
    draws = 0
    for trial in trials:
        draws += 1
        for X in rule.search.inputs(rng, subject.seq_len, subject.d_model):
            size = rule.search.violation(trial, X)
            if size is None or not np.isfinite(size):
                continue
            if worst is None or size > worst.violation_sampled:
                worst = Counterexample(rule.code, X, trial.seed, float(size))
        if worst is not None and worst.violation_sampled > max(SURELY, subject.violated):
            break
    return worst, draws


def _in_words(rule: Rule, largest: float | None, draws: int) -> str:
    if rule.search is None:
        return ""
    if largest is None:
        return "nothing could be measured"
    told = (
        "with the weights it came with"
        if draws == 1
        else f"in {draws} draws of the weights"
    )
    return f"largest violation {told}: {largest:.2g}"


def any_tokens(rng: np.random.Generator, n: int, d: int) -> Iterator[np.ndarray]:
    """One sequence of random tokens, for `Search`."""
    yield rng.standard_normal((n, d))


def links(trial: Trial, X: np.ndarray) -> np.ndarray:
    """How much row k changes when token j becomes 1 - x_j, at [k, j]."""
    return trial.once("links", X, lambda: _columns(trial, X, np.arange(len(X))))


def loudest_links(trial: Trial, X: np.ndarray) -> np.ndarray:
    """The links, of which the largest above and the largest below the diagonal count.

    Where they were measured before and are in doubt, they are measured again for four
    tokens: the first and the last, and those that later and earlier rows seem to hear best.
    If one of these columns is another now, then all are measured; the rest is not to be
    relied on otherwise.
    """

    def measure() -> np.ndarray:
        before = trial.believed("links", X)
        if before is None:
            return links(trial, X)
        heard = [np.triu(before, 1), np.tril(before, -1)]
        best = [int(np.nan_to_num(part).max(axis=0).argmax()) for part in heard]
        few = np.unique([0, *best, len(X) - 1])
        found, near = _columns(trial, X, few), trial.reading.isolated
        if np.allclose(found, before[:, few], rtol=near, atol=near, equal_nan=True):
            return before
        return links(trial, X)

    return trial.once("loudest links", X, measure)


def _columns(trial: Trial, X: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The links of some tokens, [k, number]."""
    out = trial.output(X)
    moved = np.repeat(X[None], len(tokens), axis=0)
    moved[np.arange(len(tokens)), tokens] = 1 - X[tokens]
    change = np.abs(trial.outputs(moved) - out).max(axis=-1).T
    return change / max(1.0, float(np.abs(out).max()))


def relative(difference: np.ndarray, output: np.ndarray) -> float:
    """The largest difference, relative to the output where that is above 1."""
    return float(np.abs(difference).max() / max(1.0, float(np.abs(output).max())))
