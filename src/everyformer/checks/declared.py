"""A structure that someone declares of a module: what would follow, if it were true.

A declaration proves nothing. But it has consequences, and a module that does not have them
is not what was declared: a property that it must have fails on an input, or one that some
weights must violate holds for all of them. Then the declaration is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everyformer.checks.evidence import against
from everyformer.checks.finding import Finding
from everyformer.checks.rule import Rule
from everyformer.checks.subject import Subject
from everyformer.checks.universality import (
    AFFINE_ON_EQUAL,
    Universality,
    in_lp,
    in_sup,
    keeps_zero,
)
from everyformer.errors import InputError
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import fixed_parameters
from everyformer.verdict import Verdict


@dataclass(frozen=True)
class Declared:
    """What would follow from a declaration that nothing contradicts.

    Attributes:
        spec: What was declared, and which parameters are not free.
        compared: Codes of the rules whose consequences were compared with the module.
        lp: What would follow in L^p.
        sup: What would follow in the sup norm.
    """

    spec: AttentionSpec
    compared: tuple[str, ...]
    lp: Universality
    sup: Universality

    def __str__(self) -> str:
        """In words that are not those of a verdict."""
        parts = [f"{one.where}: {_in_words(one)}" for one in (self.lp, self.sup)]
        return (
            f"declared as {self.spec.name!r}, which nothing contradicts "
            f"({', '.join(self.compared)} were compared); if that is true, it is "
            f"{'; '.join(parts)}. A declaration is not a proof"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "spec": self.spec.to_json(),
            "compared": list(self.compared),
            "if_true": {"lp": _in_words(self.lp), "sup": _in_words(self.sup)},
        }


def _in_words(one: Universality) -> str:
    said = {
        Verdict.PROVED: "universal",
        Verdict.REFUTED: "not universal",
        Verdict.UNKNOWN: "not decided",
    }
    return f"{said[one.verdict]} ({one.why})"


def declared(
    subject: Subject,
    spec: AttentionSpec,
    rules: Sequence[Rule],
    findings: Sequence[Finding],
    trials: int,
    seed: int,
) -> Declared:
    """What would follow from a declared structure.

    Args:
        subject: A module.
        spec: What is declared of it.
        rules: All rules.
        findings: What was found of the module without the declaration, for each rule.
        trials: Draws of the weights.
        seed: What they are drawn from.

    Raises:
        InputError: If the module contradicts the declaration.
    """
    if subject.module is None:
        raise InputError("spec= is declared of a module, but a spec alone was given.")
    spec = replace(spec, fixed=(*spec.fixed, *fixed_parameters(subject.module)))
    wrong = list(_contradictions(subject, spec, rules, findings))
    if wrong:
        raise InputError(_refusal(subject, spec, wrong[0]))
    n = subject.seq_len
    named = {
        one.code: _believed(rule, spec, one, n) for rule, one in _both(rules, findings)
    }
    alone = not subject.feed_forward
    lp = in_lp(spec, named, n, alone=alone)
    if lp.verdict is Verdict.PROVED:
        believed = replace(subject, spec=spec, doubt="")
        vars(believed).update(followed=subject.followed, known=subject.known)
        reasons = against(believed, rules, findings, trials, seed)
        if reasons:
            raise InputError(_refusal(subject, spec, reasons[0]))
    zero_stays = keeps_zero(spec, alone=alone)
    sup = in_sup(lp, named, n, zero_stays=zero_stays, alone=alone)
    decided = [
        rule.code
        for rule in rules
        if rule.by_structure(spec, n).holds is not None
        and (alone or rule.code != AFFINE_ON_EQUAL)
    ]
    return Declared(spec, tuple(decided), lp, sup)


def _both(
    rules: Sequence[Rule], findings: Sequence[Finding]
) -> Iterator[tuple[Rule, Finding]]:
    return zip(rules, findings, strict=True)


def _believed(rule: Rule, spec: AttentionSpec, finding: Finding, n: int) -> Finding:
    """The finding of a rule if the declaration is true."""
    answer = rule.by_structure(spec, n)
    if answer.holds is None:
        return finding
    verdict = Verdict.PROVED if answer.holds else Verdict.REFUTED
    return replace(finding, verdict=verdict, reason=answer.reason, pair=answer.pair)


def _contradictions(
    subject: Subject,
    spec: AttentionSpec,
    rules: Sequence[Rule],
    findings: Sequence[Finding],
) -> Iterator[str]:
    """Consequences of a declaration that the module does not have.

    A block may have its own feed-forward layer beside what is declared; where stacks have
    feed-forward layers anyway, it need not be affine on equal tokens (EF012).
    """
    for rule, found in _both(rules, findings):
        if rule.code == AFFINE_ON_EQUAL and subject.feed_forward:
            continue
        said = rule.by_structure(spec, subject.seq_len)
        if said.holds and found.counterexample is not None:
            yield (
                f"then {rule.code} {rule.name} holds ({said.reason}), but an input "
                f"violates it by {found.violation_sampled:.2g}"
            )
        elif said.holds and found.verdict is Verdict.REFUTED:
            yield f"then {rule.code} {rule.name} holds ({said.reason}), but {found.reason}"
        elif said.holds is False and found.verdict is Verdict.PROVED:
            yield (
                f"then {rule.code} {rule.name} fails for some weights ({said.reason}), but "
                f"it holds for all: {found.reason}"
            )


def _refusal(subject: Subject, spec: AttentionSpec, why: str) -> str:
    return (
        f"{subject.name} is not what spec= declares ({spec.name!r}): {why}. Declare what "
        "it is, or leave spec= out."
    )
