"""`everyformer explain`: what a rule or an assumption means."""

from typing import Annotated

import typer


def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="CODE",
            help="A rule, such as EF003, or an assumption, such as A1.2.",
            show_default=False,
        ),
    ],
) -> None:
    """Print what a rule of the checks means, by its code.

    What the rule states, why it matters, which layers satisfy it and which do not, and
    where it comes from.
    """
    from everyformer.checks.patterns import ASSUMPTIONS
    from everyformer.checks.rules import rule_of
    from everyformer.cli import tables

    text = ASSUMPTIONS.get(code.upper()) or rule_of(code).text
    tables.show((text or "").rstrip())
