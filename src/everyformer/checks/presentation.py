"""How reports are told: the claim, then its verdict, so that good news reads as good."""

from collections.abc import Sequence

from everyformer.checks.finding import Finding
from everyformer.checks.universality import Universality
from everyformer.notebook import News, html_lines, html_table, short

LEGEND = (
    "obstacle: PROVED is bad news, such a layer is not universal; REFUTED is good news.",
    "condition: PROVED is good news; where it is not, its theorem does not apply.",
    "measure: neither good nor bad.",
)
"""What the kinds of rules mean."""


ASSUMED = (
    "operations: what is proved is about the operations of a copy in float64, and assumes "
    "that the module computes the same function in every run."
)
"""What a proof from operations rests on, since no program can see it."""


def legend(findings: Sequence[Finding]) -> list[str]:
    """The lines of `LEGEND` about kinds that there are, and what proofs rest on."""
    kinds = {finding.kind for finding in findings}
    lines = [line for line in LEGEND if line.partition(":")[0] in kinds]
    return [*lines, *assumptions(findings)]


def assumptions(findings: Sequence[Finding]) -> list[str]:
    """What proofs rest on beside the theorems; nothing where none is from operations."""
    return [ASSUMED] if any(f.how == "operations" for f in findings) else []


def told(
    subject: str,
    sizes: str,
    answers: Sequence[Universality],
    findings: Sequence[Finding],
) -> str:
    """A report as text."""
    lines: list[str] = []
    for answer in answers:
        lines.append(f"{answer.claim(subject)}: {answer.verdict} ({sizes})")
        lines.append(f"  {answer.why}")
    wide = max((len(finding.name) for finding in findings), default=0)
    for f in findings:
        kind = f"{f.kind}, {f.news}" if f.news else f.kind
        lines.append(f"  {f.code:5} {f.name:{wide}} ({kind}) {f.verdict}: {f.reason}")
    lines += [f"  {line}" for line in assumptions(findings)]
    return "\n".join(lines)


def in_short(subject: str, sizes: str, answers: Sequence[Universality]) -> str:
    """A report on one line."""
    verdicts = ", ".join(f"{answer.where}: {answer.verdict}" for answer in answers)
    return f"{short(subject)} is universal {verdicts} ({sizes})"


def as_html(
    subject: str,
    sizes: str,
    answers: Sequence[Universality],
    findings: Sequence[Finding],
) -> str:
    """A report as tables."""
    above = [[a.claim(subject), News.of(a.verdict), a.why] for a in answers]
    rows = [
        [f.code, f.name, f.kind, News(str(f.verdict), f.good), f.news, f.reason]
        for f in findings
    ]
    headings = ("rule", "property", "kind", "verdict", "news", "why")
    return (
        html_table(f"{subject} ({sizes})", above, ("claim", "verdict", "why"))
        + html_table("Rules", rows, headings)
        + html_lines(legend(findings))
    )
