"""Is it universal? All rules on one subject, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from torch import nn

from everyformer.checks.calling import InPlaceOfEmbedding
from everyformer.checks.declared import Declared, declared
from everyformer.checks.evidence import against
from everyformer.checks.finding import Finding
from everyformer.checks.patterns import PatternReport, check_pattern
from everyformer.checks.presentation import as_html, assumptions, in_short, told
from everyformer.checks.rule import judge
from everyformer.checks.rules import RULES
from everyformer.checks.subject import Subject
from everyformer.checks.threads import threads_for
from everyformer.checks.universality import (
    ZERO,
    Universality,
    in_lp,
    in_sup,
    keeps_zero,
    verdict_of,
)
from everyformer.errors import InputError
from everyformer.model.attention_spec import AttentionSpec
from everyformer.numerics.limits import check_integer
from everyformer.patterns.pattern import Pattern
from everyformer.progress import Progress, no_progress
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
        declared: What would follow from a structure that was declared; None without one.
    """

    subject: str
    seq_len: int
    d_model: int
    findings: tuple[Finding, ...]
    lp: Universality
    sup: Universality
    declared: Declared | None = None

    def __post_init__(self) -> None:
        """Nothing is PROVED universal while an obstacle is: that would be a fault here.

        But for EF007, which says nothing of stacks in which other layers have biases.
        """
        obstacles = {rule.code for rule in RULES if rule.kind == "obstacle"} - {ZERO}
        held = [f for f in self.findings if f.code in obstacles]
        proved = [f.code for f in held if f.verdict is Verdict.PROVED]
        contradicted = [f.code for f in self.findings if f.contradicts is not None]
        if self.lp.verdict is Verdict.PROVED and proved + contradicted:
            msg = f"{self.subject} is PROVED universal, against {proved + contradicted}"
            raise AssertionError(f"{msg}; please report this.")

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

    @property
    def sizes(self) -> str:
        """n and d."""
        return f"n = {self.seq_len}, d = {self.d_model}"

    def __str__(self) -> str:
        """What is claimed with its verdict and why, then a line for each rule."""
        text = told(self.subject, self.sizes, (self.lp, self.sup), self.findings)
        return text if self.declared is None else f"{text}\n  {self.declared}"

    def __repr__(self) -> str:
        """One line or two; `print` shows the rules."""
        return f"Report({in_short(self.subject, self.sizes, (self.lp, self.sup))})"

    def _repr_html_(self) -> str:
        """A line for each distance and for each rule, for notebooks."""
        return as_html(self.subject, self.sizes, (self.lp, self.sup), self.findings)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "subject": self.subject,
            "seq_len": self.seq_len,
            "d_model": self.d_model,
            "verdict": str(self.verdict),
            "universal": {"lp": self.lp.to_json(), "sup": self.sup.to_json()},
            "findings": [finding.to_json() for finding in self.findings],
            "assumes": assumptions(self.findings),
            "declared": None if self.declared is None else self.declared.to_json(),
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
    layout: str = "auto",
    feed_forward: bool = True,
    embedding: str | None = None,
    spec: AttentionSpec | None = None,
    progress: Progress = no_progress,
) -> Report: ...


def check(
    module: nn.Module | Subject | Pattern,
    seq_len: int | None = None,
    d_model: int | None = None,
    *,
    trials: int = DEFAULT_TRIALS,
    seed: int = 0,
    layout: str = "auto",
    feed_forward: bool = True,
    embedding: str | None = None,
    spec: AttentionSpec | None = None,
    progress: Progress = no_progress,
) -> Report | PatternReport:
    """Judge whether stacks of a layer approximate every sequence-to-sequence function.

    Args:
        module: A module that maps (batch, n, d), or (n, batch, d), to the same shape; or a
            subject; or a sparse pattern, which is judged with softmax
            (`checks.patterns.check_pattern` takes other maps, a gamma and a time limit) and
            needs no other argument.
        seq_len: n; for a module.
        d_model: d; for a module.
        trials: Draws of the weights in which counterexamples are looked for.
        seed: What they are drawn from.
        layout: "batch_first" or "tokens_first", for a module that takes (batch, n, d) or
            (n, batch, d); "auto" finds out, by a batch of two.
        feed_forward: Whether stacks have feed-forward layers beside the layer; False asks
            whether the layer can do without.
        embedding: For a model of token ids: the name of its part that embeds them, such as
            "transformer.wte". The sequence that is judged takes the place of its output.
        spec: What the module is, if you say so. It proves nothing: the report tells what
            would follow, in `declared`, and a module that contradicts it is refused.
        progress: Called as progress(what, done, total).

    Raises:
        InputError: If the module cannot be run at this size, or is not what was declared.
    """
    if isinstance(module, Pattern):
        return check_pattern(module)
    check_integer("trials", trials, 1)
    check_integer("seed", seed, 0)
    if not isinstance(module, Subject):
        if seq_len is None or d_model is None:
            msg = f"seq_len={seq_len}, d_model={d_model}: give both, to run the module."
            raise InputError(msg)
        name = type(module).__name__
        if embedding is not None:
            module = InPlaceOfEmbedding(module, embedding)
        module = Subject.of(module, seq_len, d_model, name, layout)
    if not feed_forward:
        name = f"{module.name}, without feed-forward layers,"
        module = replace(module, name=name, feed_forward=False)
    with threads_for(module):
        report = _checked(module, trials, seed, progress)
        if spec is None:
            return report
        said = declared(module, spec, RULES, report.findings, trials, seed)
        return replace(report, declared=said)


def _checked(subject: Subject, trials: int, seed: int, progress: Progress) -> Report:
    """All rules, and the rules again without what they found to be wrong."""
    findings = _findings(subject, trials, seed, progress)
    if any(finding.contradicts == "operations" for finding in findings):
        subject = subject.not_followed("a counterexample contradicts its operations")
        findings = _findings(subject, trials, seed, progress)
    wrong = [f for f in findings if f.contradicts == "structure"]
    if wrong:
        why = f"{wrong[0].code}: {wrong[0].reason}"
        return _judged(subject.doubted(why), trials, seed, progress, wrong)
    lp = _in_lp(subject, findings)
    if lp.verdict is Verdict.PROVED and subject.module is not None:
        reasons = against(subject, RULES, findings, trials, seed)
        if reasons:
            why = f"by {lp.source} it would be universal, but {reasons[0]}"
            return _judged(subject.doubted(why), trials, seed, progress)
    return _concluded(subject, findings)


def _judged(
    subject: Subject,
    trials: int,
    seed: int,
    progress: Progress,
    kept: Sequence[Finding] = (),
) -> Report:
    """The report without what was believed before; findings that showed why are kept."""
    known = {finding.code: finding for finding in kept}
    again = _findings(subject, trials, seed, progress)
    return _concluded(subject, tuple(known.get(one.code, one) for one in again))


def _in_lp(subject: Subject, findings: tuple[Finding, ...]) -> Universality:
    named = {finding.code: finding for finding in findings}
    doubt = subject.doubt if subject.spec is not None else ""
    alone = not subject.feed_forward
    return in_lp(subject.structure, named, subject.seq_len, doubt, alone=alone)


def _concluded(subject: Subject, findings: tuple[Finding, ...]) -> Report:
    named = {finding.code: finding for finding in findings}
    lp, n = _in_lp(subject, findings), subject.seq_len
    alone = not subject.feed_forward
    zero_stays = keeps_zero(subject.structure, alone=alone)
    sup = in_sup(lp, named, n, zero_stays=zero_stays, alone=alone)
    return Report(subject.name, n, subject.d_model, findings, lp, sup)


def _findings(
    subject: Subject, trials: int, seed: int, progress: Progress
) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for rule in RULES:
        progress(f"check {rule.code} {rule.name}", len(found), len(RULES))
        found.append(judge(rule, subject, trials, seed))
    return tuple(found)
