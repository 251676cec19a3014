"""`everyformer bench`: what is fast, measured on this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from everyformer.bench import (
    attention,
    building,
    certificates,
    constructions,
    execution,
    hostile,
    mixers,
    peers,
    sparse,
    tightness,
    training,
    work,
)
from everyformer.bench.results import write
from everyformer.cli import tables
from everyformer.cli.options import JsonOption
from everyformer.cli.progress import progress_bar

THEMES = {
    "building": building,
    "execution": execution,
    "certificates": certificates,
    "constructions": constructions,
    "attention": attention,
    "training": training,
    "sparse": sparse,
    "mixers": mixers,
    "hostile": hostile,
    "work": work,
    "tightness": tightness,
    "peers": peers,
}

PICTURES = {
    "constructions": constructions.picture,
    "execution": execution.picture,
    "attention": attention.picture,
    "training": training.picture,
    "sparse": sparse.picture,
    "mixers": mixers.picture,
}


def bench(
    theme: Annotated[
        str,
        typer.Argument(
            metavar="THEME",
            help=f"What to time: {' or '.join(THEMES)}.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the result file.")
    ] = Path("benchmarks/results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A small network and few repeats: seconds.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Time one part of everyformer, after checking that its results are right.

    Medians and ratios come from one run on this machine. The result file names the
    machine, the versions, the commit and the date.
    """
    if theme not in THEMES:
        msg = f"{theme!r} is not a theme. Choose {' or '.join(THEMES)}."
        raise typer.BadParameter(msg)
    with progress_bar() as progress:
        report = THEMES[theme].run(quick=quick, progress=progress)
    path = write(out, f"{theme}-quick" if quick else theme, report)
    if theme in PICTURES:
        PICTURES[theme](report, path.with_suffix(".png"))
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    tables.show(THEMES[theme].table(report), f"Wrote {path}.")
