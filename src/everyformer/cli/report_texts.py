"""How reports of the checks are printed."""

import textwrap
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from everyformer.checks.finding import Finding
from everyformer.checks.presentation import legend
from everyformer.checks.universality import Universality
from everyformer.cli.tables import coloured
from everyformer.notebook import News

WIDTH = 92


def answers(subject: str, sizes: str, *distances: Universality) -> list[Text | str]:
    """For each distance the claim, its verdict, and why."""
    told: list[Text | str] = []
    for answer in distances:
        verdict = coloured(News.of(answer.verdict))
        claim = answer.claim(subject)
        told.append(Text.assemble(f"{claim}: ", verdict, f" ({sizes})"))
        told += textwrap.wrap(
            answer.why, WIDTH, initial_indent="  ", subsequent_indent="    "
        )
    return told


def findings_table(findings: Sequence[Finding]) -> Table:
    """A line for each rule, and below what the kinds of rules mean."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("rule", "property", "kind", "verdict", "news", "why"):
        table.add_column(heading, no_wrap=heading != "why")
    for found in findings:
        how = "" if found.how in ("nothing", "pattern") else f" [{found.how}]"
        table.add_row(
            found.code,
            found.name,
            found.kind,
            coloured(News(str(found.verdict), found.good)),
            found.news,
            Text(f"{found.reason}{how}"),
        )
    table.caption, table.caption_justify = Text("\n".join(legend(findings))), "left"
    return table
