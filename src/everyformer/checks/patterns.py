"""Is a sparse pattern universal? Assumptions 1 and 2, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everyformer.checks.finding import Finding
from everyformer.checks.presentation import as_html, in_short, told
from everyformer.checks.universality import Universality, never_hears, verdict_of
from everyformer.papers import YUN2020B, ZAHEER2020, Citation, implements
from everyformer.patterns.assumption_1 import TEXT as TEXT_1
from everyformer.patterns.assumption_1 import TIME_LIMIT, Assumption1, assumption_1
from everyformer.patterns.assumption_2 import TEXT as TEXT_2
from everyformer.patterns.assumption_2 import Assumption2, Rho, assumption_2
from everyformer.patterns.kinds import Columns
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.probability_maps import softmax
from everyformer.patterns.receptive_fields import deaf_to_the_last
from everyformer.patterns.star_graph import star_centre
from everyformer.verdict import Verdict

ASSUMPTIONS = {
    **dict.fromkeys(("A1", "A1.1", "A1.2", "A1.3"), TEXT_1),
    "A2": TEXT_2,
}
"""What `everyformer explain` prints for the codes of a pattern's findings."""


@dataclass(frozen=True)
class PatternReport:
    """What was found of a pattern.

    Attributes:
        pattern: The patterns.
        assumption_1: On them.
        assumption_2: On the map that replaces softmax.
        lp: Universal in L^p?
        sup: Universal in the sup norm?
    """

    pattern: Pattern
    assumption_1: Assumption1
    assumption_2: Assumption2
    lp: Universality
    sup: Universality

    @property
    def verdict(self) -> Verdict:
        """PROVED in L^p, REFUTED in one of the distances, or UNKNOWN."""
        return verdict_of(self.lp, self.sup)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """One for each clause of the assumptions."""
        first, second = (
            str(Citation(YUN2020B, f"Assumption {number}")) for number in (1, 2)
        )
        rho = self.assumption_2
        found = [
            _condition(one.code, one.name, one.verdict, one.reason, first)
            for one in self.assumption_1.clauses
        ]
        reason = f"{rho.name}: {rho.reason}"
        return (*found, _condition("A2", "one-hot", rho.verdict, reason, second))

    @property
    def sizes(self) -> str:
        """n."""
        return f"n = {self.pattern.n}"

    def __str__(self) -> str:
        """What is claimed with its verdict and why, then a line for each clause."""
        answers = (self.lp, self.sup)
        return told(self.pattern.name, self.sizes, answers, self.findings)

    def __repr__(self) -> str:
        """One line or two; `print` shows the clauses."""
        answers = (self.lp, self.sup)
        return f"PatternReport({in_short(self.pattern.name, self.sizes, answers)})"

    def _repr_html_(self) -> str:
        """A line for each distance and for each clause, for notebooks."""
        answers = (self.lp, self.sup)
        return as_html(self.pattern.name, self.sizes, answers, self.findings)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; tokens 1-based, as in the paper."""
        return {
            "subject": self.pattern.name,
            "seq_len": self.pattern.n,
            "verdict": str(self.verdict),
            "universal": {"lp": self.lp.to_json(), "sup": self.sup.to_json()},
            "findings": [finding.to_json() for finding in self.findings],
            "connections": list(self.pattern.connections),
            "sparsity": list(self.pattern.sparsity),
            "assumption_1": self.assumption_1.to_json(),
            "assumption_2": self.assumption_2.to_json(),
        }


def _condition(code: str, name: str, verdict: Verdict, reason: str, source: str) -> Finding:
    return Finding(code, name, verdict, "pattern", reason, source, kind="condition")


def check_pattern(
    pattern: Pattern,
    rho: Rho = softmax,
    *,
    path: Sequence[int] | None = None,
    time_limit: float = TIME_LIMIT,
) -> PatternReport:
    """Judge whether sparse Transformers with a pattern are universal.

    Args:
        pattern: The patterns.
        rho: The map that replaces softmax.
        path: A gamma of yours, 0-based; it is verified.
        time_limit: Seconds for the search of gamma, and for the count of s.

    Raises:
        PatternError: If the path given is not one, with its first broken edge.
        InputError: If rho returns no probabilities.
    """
    most = max(int(part.rows().counts.max()) for part in pattern.parts)
    first = assumption_1(pattern, path, time_limit)
    second = assumption_2(rho, m=most)
    return PatternReport(pattern, first, second, in_lp(first, second), in_sup(first))


@implements(YUN2020B, "Theorem 1")
def in_lp(first: Assumption1, second: Assumption2) -> Universality:
    """Universal in L^p, 1 <= p < infinity, with trainable positions?

    PROVED by Theorem 1 of Yun et al. 2020b under both assumptions: networks in ST^{2,1,4},
    on compact domains. REFUTED if some token never hears some other, whatever rho.
    """
    if first.never_meet is not None:
        return _refuted("L^p", first, first.never_meet)
    if first.verdict is Verdict.PROVED and second.verdict is Verdict.PROVED:
        return Universality(
            "L^p",
            Verdict.PROVED,
            "Assumptions 1 and 2 hold, so networks of two heads of size 1, hidden width 4 "
            "and trainable positions are universal",
            str(Citation(YUN2020B, "Theorem 1")),
        )
    if first.verdict is not Verdict.PROVED:
        by_star = _by_the_star(first, second)
        if by_star is not None:
            return by_star
        reason = f"{_missing(first)}; no theorem covers it"
        return Universality("L^p", Verdict.UNKNOWN, reason)
    reason = f"Assumption 1 holds, but Assumption 2 is not known for {second.name}"
    if second.verdict is Verdict.REFUTED:
        reason = f"Assumption 1 holds, but Assumption 2 fails for {second.name}"
    return Universality("L^p", Verdict.UNKNOWN, f"{reason}; no theorem covers it")


@implements(ZAHEER2020, "Theorem 1")
def _by_the_star(first: Assumption1, second: Assumption2) -> Universality | None:
    """Zaheer et al.: softmax attention over any graph that contains the star.

    As printed, the centre is a token that is added to the sequence and dropped from the
    output, and 1 < p < infinity.
    """
    centre = star_centre(first.pattern)
    if centre is None or second.name != softmax.name:
        return None
    return Universality(
        "L^p",
        Verdict.UNKNOWN,
        f"{_missing(first)}; but the pattern contains the star with centre {centre + 1} "
        "(1-based), which is universal by another theorem. As printed, that is for "
        f"functions of the other {first.pattern.n - 1} tokens (the centre is an added "
        "token, dropped from the output) and 1 < p < inf",
        str(Citation(ZAHEER2020, "Theorem 1")),
    )


def _missing(first: Assumption1) -> str:
    """Which clause of Assumption 1 fails or is open, in words."""
    failing = next(iter(first.failing))
    known = "fails" if failing.verdict is Verdict.REFUTED else "is open"
    return f"Assumption {failing.code.removeprefix('A')} {known}"


def in_sup(first: Assumption1) -> Universality:
    """Universal in the sup norm? REFUTED by the same pair; else the theorems are silent."""
    if first.never_meet is not None:
        return _refuted("sup norm", first, first.never_meet)
    return Universality("sup norm", Verdict.UNKNOWN, "the theorems are about L^p")


def _refuted(distance: str, first: Assumption1, pair: tuple[int, int]) -> Universality:
    fixed = any(isinstance(part, Columns) for part in first.pattern.parts)
    more = "; for fixed, a width that divides n, or repaired=true" if fixed else ""
    found = never_hears(distance, pair, more)
    return replace(found, reason=found.reason + _among_causal(first.pattern))


def _among_causal(pattern: Pattern) -> str:
    """What is left of universality where no token hears a later one."""
    if pattern.n == 1 or not all(part.is_causal for part in pattern.parts):
        return ""
    deaf = deaf_to_the_last(pattern)
    if deaf is None:
        return (
            "; the pattern is causal, so that at best causal functions are left, f(X)_k of "
            "x_1, .., x_k. For these every token hears all earlier ones, since each "
            "attends to the one before it; no theorem says that this is enough"
        )
    return (
        "; the pattern is causal, and does not have all causal functions either: token "
        f"{deaf + 1} never hears token {deaf}, the one before it (1-based). Add a window"
    )
