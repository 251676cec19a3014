"""Is it universal? All rules on one subject, and what follows from them."""

from dataclasses import dataclass
from typing import Any, overload

from torch import nn

from everyformer.checks.finding import Finding
from everyformer.checks.patterns import PatternReport, check_pattern
from everyformer.checks.rule import judge
from everyformer.checks.rules import RULES
from everyformer.checks.subject import Subject
from everyformer.checks.universality import Universality, in_lp, in_sup, verdict_of
from everyformer.errors import InputError
from everyformer.model.forward import Progress, no_progress
from everyformer.patterns.pattern import Pattern
from everyformer.verdict import Verdict

DEFAULT_TRIALS = 4


@dataclass(frozen=True)
class Report:
    """What was found of a subject.

    Attributes:
        subject: Its name.
        seq_len: n.
        d_model: d.
        findings: One for each rule.
        lp: Universal in L^p?
        sup: Universal in the sup norm?
    """

    subject: str
    seq_len: int
    d_model: int
    findings: tuple[Finding, ...]
    lp: Universality
    sup: Universality

    @property
    def verdict(self) -> Verdict:
        """PROVED in L^p, REFUTED in one of the distances, or UNKNOWN."""
        return verdict_of(self.lp, self.sup)

    def __getitem__(self, code: str) -> Finding:
        """The finding of a rule.

        Raises:
            KeyError: If there is no such rule.
        """
        for finding in self.findings:
            if code in (finding.code, finding.name):
                return finding
        raise KeyError(code)

    def __str__(self) -> str:
        """The verdict with its reason, then a line for each rule."""
        sizes = f"n = {self.seq_len}, d = {self.d_model}"
        lines = [f"{self.verdict}: is {self.subject} universal? ({sizes})"]
        lines += [f"  {answer.verdict} {answer}" for answer in (self.lp, self.sup)]
        lines += [f"  {f.code} {f.name:24} {f.verdict}: {f.reason}" for f in self.findings]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "subject": self.subject,
            "seq_len": self.seq_len,
            "d_model": self.d_model,
            "verdict": str(self.verdict),
            "universal": {"lp": self.lp.to_json(), "sup": self.sup.to_json()},
            "findings": [finding.to_json() for finding in self.findings],
        }


@overload
def check(module: Pattern) -> PatternReport: ...


@overload
def check(
    module: nn.Module | Subject,
    seq_len: int | None = None,
    d_model: int | None = None,
    *,
    trials: int = DEFAULT_TRIALS,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Report: ...


def check(
    module: nn.Module | Subject | Pattern,
    seq_len: int | None = None,
    d_model: int | None = None,
    *,
    trials: int = DEFAULT_TRIALS,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Report | PatternReport:
    """Judge whether stacks of a layer approximate every sequence-to-sequence function.

    Args:
        module: A module that maps (batch, n, d) to the same shape; or a subject; or a
            sparse pattern, which is judged with softmax (`checks.patterns.check_pattern`
            takes other maps, a gamma and a time limit) and needs no other argument.
        seq_len: n; for a module.
        d_model: d; for a module.
        trials: Draws of the weights in which counterexamples are looked for.
        seed: What they are drawn from.
        progress: Called as progress(what, done, total).

    Raises:
        InputError: If the module cannot be run at this size.
    """
    if isinstance(module, Pattern):
        return check_pattern(module)
    if not isinstance(module, Subject):
        if seq_len is None or d_model is None:
            msg = f"seq_len={seq_len}, d_model={d_model}: give both, to run the module."
            raise InputError(msg)
        module = Subject.of(module, seq_len, d_model)
    if trials < 1:
        raise InputError(f"trials={trials}: at least one is needed. Leave it out for 4.")
    subject = module
    findings = _findings(subject, trials, seed, progress)
    if any(finding.contradicts == "operations" for finding in findings):
        subject = subject.not_followed("a counterexample contradicts its operations")
        findings = _findings(subject, trials, seed, progress)
    named = {finding.code: finding for finding in findings}
    lp = in_lp(subject.spec, named, subject.seq_len)
    sup = in_sup(lp, named, subject.seq_len)
    return Report(subject.name, subject.seq_len, subject.d_model, findings, lp, sup)


def _findings(
    subject: Subject, trials: int, seed: int, progress: Progress
) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for rule in RULES:
        progress(f"check {rule.code} {rule.name}", len(found), len(RULES))
        found.append(judge(rule, subject, trials, seed))
    return tuple(found)
