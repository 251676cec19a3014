"""`everyformer check --pattern`: is this sparse attention universal?"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import typer
from rich.table import Table

from everyformer.certify.verify import EXIT_CODES
from everyformer.checks.patterns import PatternReport, check_pattern
from everyformer.cli import tables
from everyformer.cli.loading import import_file
from everyformer.cli.pattern_files import load_pattern, read_path
from everyformer.cli.report_texts import answers, findings_table
from everyformer.cli.saving import check_new_folder, check_parent, new_file, new_folder
from everyformer.errors import InputError
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.probability_maps import rho_by_name

DRAWING = 80


@dataclass(frozen=True)
class PatternOptions:
    """What the command line says of a pattern.

    Attributes:
        name: Name or files.
        n: Number of tokens.
        width: --width.
        parameters: --with.
        union: Judge the union of the parts.
        seed: For patterns that draw.
        rho: Name of the map, or file.py:attribute.
        gamma: A path, as given.
        time_limit: Seconds.
        zero_based: Whether the user numbers tokens from 0.
        self_loops: Whether files of edges get self-loops.
        picture: Where to draw.
        out: Folder for the report and the picture.
        as_json: Print JSON and nothing else.
    """

    name: str
    n: int | None
    width: int | None
    parameters: list[str]
    union: bool
    seed: int
    rho: str
    gamma: str | None
    time_limit: float
    zero_based: bool
    self_loops: bool
    picture: Path | None
    out: Path | None
    as_json: bool


def exit_code(options: PatternOptions) -> int:
    """Judge a pattern, print and draw it; 0 PROVED, 1 REFUTED, 3 UNKNOWN."""
    return EXIT_CODES[run(options).verdict]


def run(options: PatternOptions) -> PatternReport:
    """Judge a pattern, print and draw it."""
    if options.out is not None:
        check_new_folder(options.out, frozenset(), overwrite=False)
    if options.picture is not None:
        check_parent(options.picture, str(options.picture))
    parameters = list(options.parameters)
    if options.width is not None:
        parameters.append(f"width={options.width}")
    pattern = load_pattern(
        options.name,
        options.n,
        parameters,
        seed=options.seed,
        zero_based=options.zero_based,
        self_loops=options.self_loops,
    )
    pattern = pattern.union() if options.union else pattern
    gamma = options.gamma
    path = None if gamma is None else read_path(gamma, options.zero_based)
    rho = _rho(options.rho)
    report = check_pattern(pattern, rho, path=path, time_limit=options.time_limit)
    if options.picture is not None:
        with new_file(options.picture) as file:
            _draw(pattern, file)
    if options.out is not None:
        _save(report, options.out)
    if options.as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        tables.show(
            answers(report.heading, report.lp, report.sup),
            _sizes(report),
            findings_table(report.findings),
            pattern.draw(DRAWING),
        )
        written = [str(path) for path in (options.picture, options.out) if path]
        if written:
            tables.show(f"Wrote {', '.join(written)}.")
    return report


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
    if name.endswith(".py"):
        msg = f"--rho {name}: a file may have many functions. Name one, {name}:function."
        raise InputError(msg)
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
        with new_file(place / "pattern.png") as file:
            _draw(report.pattern, file)


def _draw(pattern: Pattern, file: IO[bytes]) -> None:
    from everyformer.cli.pictures import save  # slow to import

    save(pattern.picture(), file)
