"""`everyformer bench`: what is fast, measured on this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.defaults import THEMES


def bench(
    theme: Annotated[
        str,
        typer.Argument(
            metavar="THEME",
            help=f"What to time: {' or '.join(THEMES)}.",
            show_default=False,
        ),
    ],
    out: options.ResultFolderOption = Path("benchmarks/results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A small network and few repeats: seconds.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Time one part of everyformer, after checking that its results are right.

    Medians and ratios come from one run on this machine. The result file names the
    machine, the versions, the commit and the date.
    """
    if theme not in THEMES:
        msg = f"{theme!r} is not a theme. Choose {' or '.join(THEMES)}."
        raise typer.BadParameter(msg)
    from everyformer.bench.results import write
    from everyformer.bench.themes import PICTURES
    from everyformer.bench.themes import THEMES as RUNS
    from everyformer.cli import tables
    from everyformer.cli.progress import progress_bar

    with progress_bar() as progress:
        report = RUNS[theme].run(quick=quick, progress=progress)
    path = write(out, f"{theme}-quick" if quick else theme, report)
    if theme in PICTURES:
        PICTURES[theme](report, path.with_suffix(".png"))
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    tables.show(RUNS[theme].table(report), f"Wrote {path}.")
