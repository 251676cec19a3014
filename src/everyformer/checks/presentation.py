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


def legend(findings: Sequence[Finding]) -> list[str]:
    """The lines of `LEGEND` about kinds that there are."""
    kinds = {finding.kind for finding in findings}
    return [line for line in LEGEND if line.partition(":")[0] in kinds]


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
