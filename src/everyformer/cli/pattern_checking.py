"""What `check-pattern` does with a pattern."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from everyformer.checks.patterns import PatternReport, check_pattern
from everyformer.cli import tables
from everyformer.cli.defaults import SEARCH_SECONDS
from everyformer.cli.loading import import_file
from everyformer.cli.pattern_files import load_pattern, read_parameters, read_path
from everyformer.cli.report_texts import answers, findings_table
from everyformer.cli.saving import new_file, new_folder
from everyformer.errors import InputError
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.probability_maps import rho_by_name

DRAWING = 80


def report_of(
    name: str,
    seq_len: int | None,
    given: Sequence[str] | None,
    *,
    union: bool = False,
    causal: bool = False,
    rho: str = "softmax",
    gamma: str | None = None,
    time_limit: float = SEARCH_SECONDS,
) -> PatternReport:
    """Judge the pattern that the command line names.

    Args:
        name: Name or files.
        seq_len: Number of tokens.
        given: KEY=VALUE.
        union: Judge the union of the parts.
        causal: Judge what the causal mask leaves of it.
        rho: Name of the map, or file.py:attribute.
        gamma: A path, as given.
        time_limit: Seconds.
    """
    parameters = read_parameters(given or ())
    pattern = load_pattern(name, seq_len, parameters)
    if union:
        pattern = pattern.union()
    if causal:
        pattern = pattern.causal_part()
    path = None
    if gamma is not None:
        path = read_path(gamma, bool(parameters.get("zero_based")))
    return check_pattern(pattern, _rho(rho), path=path, time_limit=time_limit)


def show(
    report: PatternReport, *, picture: Path | None, out: Path | None, as_json: bool
) -> None:
    """Print what was found, draw it, and write it to a folder."""
    if picture is not None:
        _draw(report.pattern, picture)
    if out is not None:
        _save(report, out)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        tables.show(
            *answers(report.pattern.name, report.sizes, report.lp, report.sup),
            _sizes(report),
            findings_table(report.findings),
            report.pattern.draw(DRAWING),
        )
        written = [str(path) for path in (picture, out) if path]
        if written:
            tables.show(f"Wrote {', '.join(written)}.")


def _sizes(report: PatternReport) -> Table:
    """n, p, connections, sparsity, gamma and s."""
    pattern, found = report.pattern, report.assumption_1
    rows = {
        "patterns p": str(pattern.p),
        "connections": " / ".join(f"{count:,}" for count in pattern.connections),
        "sparsity": " / ".join(f"{100 * share:.2f} %" for share in pattern.sparsity),
        "gamma": found.gamma_in_words,
        "s": found.hops_in_words,
    }
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _rho(name: str) -> Any:
    """The map of a name, or a function in a file."""
    file, colon, attribute = name.rpartition(":")
    if not (colon and file.endswith(".py")):
        return rho_by_name(name)
    function = getattr(import_file(Path(file)), attribute, None)
    if not callable(function):
        msg = f"{file} has no function {attribute!r}: one that maps scores, a numpy array"
        raise InputError(f"{msg}, to probabilities is needed.")
    return function


def _save(report: PatternReport, out: Path) -> None:
    """Write the report and the picture."""
    with new_folder(out, frozenset(), overwrite=False) as place:
        text = json.dumps(report.to_json(), indent=2) + "\n"
        (place / "report.json").write_text(text)
        _draw(report.pattern, place / "pattern.png")


def _draw(pattern: Pattern, path: Path) -> None:
    from everyformer.figures import save  # slow to import

    with new_file(path) as file:
        save(pattern.picture(), file, path)
