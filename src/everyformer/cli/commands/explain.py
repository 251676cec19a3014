"""`everyformer explain`: what a rule or an assumption means."""

from typing import Annotated

import typer

from everyformer.cli.names import check_code

EXAMPLE = "everyformer explain EF003"


def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="CODE", help="A rule, such as EF003, or an assumption, such as A1.2."
        ),
    ],
) -> None:
    """Print what a rule of the checks means, by its code.

    What the rule states, why it matters, which layers satisfy it and which do not, and
    where it comes from.
    """
    check_code(code)
    from everyformer.checks.patterns import ASSUMPTIONS
    from everyformer.checks.presentation import LEGEND
    from everyformer.checks.rules import rule_of
    from everyformer.cli import tables

    assumption = ASSUMPTIONS.get(code.upper())
    if assumption is not None:
        kind, text = "condition", assumption
    else:
        rule = rule_of(code)
        kind, text = rule.kind, rule.text or ""
    meaning = next(line for line in LEGEND if line.startswith(f"{kind}:"))
    tables.show(text.rstrip(), "", f"Kind: {meaning}")
