"""How reports of the checks are printed."""

import textwrap
from collections.abc import Sequence

from rich.table import Table

from everyformer.checks.finding import Finding
from everyformer.checks.universality import Universality

WIDTH = 92


def answers(heading: str, *distances: Universality) -> str:
    """The verdict, and what is known in each distance."""
    lines = [heading]
    for answer in distances:
        lines += textwrap.wrap(
            f"{answer.verdict} {answer}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    return "\n".join(lines)


def findings_table(findings: Sequence[Finding]) -> Table:
    """A line for each rule."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("rule", "property", "verdict", "why"):
        table.add_column(heading, no_wrap=heading != "why")
    for found in findings:
        how = "" if found.how in ("nothing", "pattern") else f" [{found.how}]"
        table.add_row(found.code, found.name, str(found.verdict), f"{found.reason}{how}")
    return table
