"""`everyformer plan --compare`: all methods side by side."""

from collections.abc import Sequence
from pathlib import Path

import typer

from everyformer.cli import pictures, tables
from everyformer.cli.method_settings import read_method
from everyformer.cli.saving import new_file
from everyformer.construct.comparison import Comparison
from everyformer.construct.method import Method
from everyformer.construct.optimality import ratio_table
from everyformer.construct.registry import DEFAULT, is_compared
from everyformer.targets.target import Target


def also_compared(
    name: str | None, settings: Sequence[str] | None, target: Target
) -> list[Method]:
    """The method that is asked for, if it is not compared anyhow.

    Raises:
        typer.BadParameter: If it is, and settings are given.
    """
    given = read_method(name, settings, target.seq_len)
    if not is_compared(given, target):
        return [given]
    if settings:
        msg = (
            f"--compare tries {name or DEFAULT} with settings of its own. Leave --with "
            f"out, or plan it alone: --method {name or DEFAULT} without --compare."
        )
        raise typer.BadParameter(msg)
    return []


def show_comparison(found: Comparison, picture: Path | None, *, as_json: bool) -> None:
    """Print the tables, and draw them."""
    if picture is None and not as_json:
        picture = Path(f"{found.target}-comparison.png")
    if picture is not None:
        with new_file(picture) as file:
            pictures.save(pictures.comparison(found), file, picture)
    words = (*found.remarks(), ratio_table(found.ratios), f"Wrote {picture}.")
    table = found.table(tables.columns())
    tables.answer(found.to_json(), table, *words, as_json=as_json)
