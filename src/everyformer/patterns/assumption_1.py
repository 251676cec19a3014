"""Assumption 1 of Yun et al. 2020b on the patterns: self-loops, a path, receptive fields.

1. k in A_k^l for all k and l.
2. There is a permutation gamma of [n] with gamma(i) in union_l A^l_gamma(i+1).
3. There is a finite s such that S_k^s = [n] for all k (see `receptive_fields`).

With it, and Assumption 2 on the map that replaces softmax, sparse Transformers are
universal (Theorem 1). The three clauses are not equally necessary. Without 1.3, counted
with the self-loops of the residual connection, a token never depends on some other token:
REFUTED, with the pair. Without 1.1 or 1.2 the theorem is silent: UNKNOWN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everyformer.papers import YUN2020B, implements
from everyformer.patterns.hamiltonian_path import hamiltonian_path
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.receptive_fields import Fields, receptive_fields
from everyformer.verdict import Verdict

TEXT = __doc__
"""What `everyformer explain A1` prints."""

TIME_LIMIT = 10.0
"""Seconds for each of the two searches: for gamma and for s."""

SHOWN = 12


@dataclass(frozen=True)
class Clause:
    """One clause of the assumption.

    Attributes:
        code: Such as A1.2.
        name: In words, with hyphens.
        verdict: Whether it holds.
        reason: In words, tokens 1-based.
    """

    code: str
    name: str
    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        return f"{self.code} {self.name} {self.verdict}: {self.reason}"


@dataclass(frozen=True)
class Assumption1:
    """What was found of the patterns.

    Attributes:
        pattern: The patterns.
        clauses: 1.1, 1.2 and 1.3.
        path: gamma, 0-based; None if no path exists or none was found.
        hops: s; None if no s suffices or it was not counted: `hops_in_words`.
        never_meet: Tokens (k, j), 0-based: k never hears j, at any depth.
    """

    pattern: Pattern
    clauses: tuple[Clause, Clause, Clause]
    path: tuple[int, ...] | None
    hops: int | None
    never_meet: tuple[int, int] | None

    @property
    def self_loops(self) -> bool:
        """Whether 1.1 holds."""
        return self.clauses[0].verdict is Verdict.PROVED

    @property
    def verdict(self) -> Verdict:
        """PROVED if all clauses hold; REFUTED with `never_meet`; else UNKNOWN."""
        if self.never_meet is not None:
            return Verdict.REFUTED
        if all(clause.verdict is Verdict.PROVED for clause in self.clauses):
            return Verdict.PROVED
        return Verdict.UNKNOWN

    @property
    def gamma_in_words(self) -> str:
        """gamma, 1-based; or that no path exists, or that none was found."""
        if self.path is not None:
            return shortened(self.path)
        return "none" if self.clauses[1].verdict is Verdict.REFUTED else "none found"

    @property
    def hops_in_words(self) -> str:
        """s; or that no s suffices, or that it was not counted or found."""
        if self.hops is not None:
            return str(self.hops)
        words = {Verdict.PROVED: "not counted", Verdict.REFUTED: "none"}
        return words.get(self.clauses[2].verdict, "none found")

    @property
    def failing(self) -> tuple[Clause, ...]:
        """The clauses that are not known to hold."""
        return tuple(one for one in self.clauses if one.verdict is not Verdict.PROVED)

    def __str__(self) -> str:
        """The verdict, then a line for each clause."""
        lines = [f"{self.verdict}: Assumption 1 for {self.pattern}"]
        return "\n".join([*lines, *(f"  {clause}" for clause in self.clauses)])

    def to_json(self) -> dict[str, Any]:
        """A JSON object; tokens 1-based, as in the paper."""
        pair = self.never_meet
        return {
            "verdict": str(self.verdict),
            "gamma": None if self.path is None else [token + 1 for token in self.path],
            "s": self.hops,
            "never_meet": None if pair is None else [token + 1 for token in pair],
            "numbering": "1-based",
        }


@implements(YUN2020B, "Assumption 1")
def assumption_1(
    pattern: Pattern, path: Sequence[int] | None = None, time_limit: float = TIME_LIMIT
) -> Assumption1:
    """Judge the patterns.

    Args:
        pattern: The patterns.
        path: A gamma of yours, 0-based; it is verified.
        time_limit: Seconds for the search of gamma, and for the count of s.

    Raises:
        PatternError: If what is given is not such a path, with its first broken edge.

    Example:
        >>> from everyformer.patterns import strided
        >>> found = assumption_1(strided(64, 8))
        >>> print(found.verdict, found.hops, found.path == tuple(range(64)))
        PROVED 3 True
    """
    fields = receptive_fields(pattern, time_limit)
    decided = fields.never is not None
    found = hamiltonian_path(pattern, path, 0.0 if decided else time_limit)
    gamma = found.reason
    if found.path is not None and found.path != tuple(range(pattern.n)):
        gamma = f"{found.reason}: {shortened(found.path)}"
    loops = _self_loops(pattern)
    clauses = (
        loops,
        Clause("A1.2", "hamiltonian-path", found.verdict, gamma),
        _fields_fill(fields, loops.verdict is Verdict.PROVED),
    )
    return Assumption1(pattern, clauses, found.path, fields.hops, fields.never)


def shortened(path: Sequence[int]) -> str:
    """A path in 1-based numbers, its middle left out where it is long."""
    numbers = [str(token + 1) for token in path]
    if len(numbers) > SHOWN:
        numbers = [*numbers[: SHOWN - 3], "..", *numbers[-2:]]
    return ", ".join(numbers)


def _self_loops(pattern: Pattern) -> Clause:
    for place, part in enumerate(pattern.parts):
        token = part.without_self_loop()
        if token is not None:
            reason = f"token {token + 1} (1-based) is not in its own set in A^{place + 1}"
            return Clause("A1.1", "self-loops", Verdict.REFUTED, reason)
    reason = "every token attends to itself, in every part"
    return Clause("A1.1", "self-loops", Verdict.PROVED, reason)


def _fields_fill(fields: Fields, loops: bool) -> Clause:
    def clause(verdict: Verdict, reason: str) -> Clause:
        return Clause("A1.3", "receptive-fields", verdict, reason)

    if fields.never is not None:
        k, j = (token + 1 for token in fields.never)
        return clause(Verdict.REFUTED, f"token {k} never hears token {j} (1-based)")
    if fields.hops is not None:
        reason = f"after s = {fields.hops} layers every token has heard every token"
        return clause(Verdict.PROVED, reason)
    if loops:
        reason = "the union is strongly connected, so s exists; it was not counted, for "
        reason += "want of time or memory"
        return clause(Verdict.PROVED, reason)
    reason = "no s was found; every token hears every token through the residual connection"
    return clause(Verdict.UNKNOWN, reason)
