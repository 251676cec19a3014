"""`everyformer construct`: build a network and write it to a folder."""

import json
import math
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from everyformer.cli import options, pictures, tables
from everyformer.cli.loading import load_target
from everyformer.cli.progress import progress_bar
from everyformer.cli.saving import (
    COST_FILE,
    IDS_FILE,
    NETWORK_FILE,
    PLOT_FILE,
    check_new_folder,
    new_folder,
)
from everyformer.construct.pipeline import Built
from everyformer.construct.pipeline import construct as build

OWN_FILES = frozenset({NETWORK_FILE, COST_FILE, PLOT_FILE, IDS_FILE})
"""What --overwrite may delete: our files, and the picture that `inspect` adds."""


def construct(
    target: options.TargetArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder to write; it must be new or empty.",
            show_default=False,
        ),
    ],
    tol: Annotated[
        float | None,
        typer.Option(
            metavar="EPS",
            help="Distance d_p(f, g) allowed: the coarsest grid is taken whose bound, "
            "given the target's declared modulus of continuity, meets it.",
            show_default=False,
        ),
    ] = None,
    grid: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Instead of --tol: cells per axis.",
            show_default=False,
        ),
    ] = None,
    p: Annotated[
        float, typer.Option("-p", "--p", metavar="P", help="The exponent of d_p.")
    ] = 2.0,
    exact: options.ExactOption = False,
    positional: options.PositionalOption = None,
    seq_len: options.SeqLenOption = None,
    d_model: options.DModelOption = None,
    max_memory: Annotated[
        float,
        typer.Option(metavar="GIB", help="GiB that building may need; more is refused."),
    ] = 4.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder of an earlier run.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Build the network of a target and write it to a folder.

    Give either --tol or --grid. The folder holds network.safetensors (the weights),
    cost.json (sizes and the bound) and plot.png (target and network along a line); it
    appears complete or not at all.
    """
    if (tol is None) == (grid is None):
        msg = "Give either --tol or --grid: the distance allowed, or the cells per axis."
        raise typer.BadParameter(msg)
    if not (math.isfinite(max_memory) and max_memory > 0):
        msg = f"--max-memory {max_memory:g} is not a positive number of GiB."
        raise typer.BadParameter(msg)
    check_new_folder(out, OWN_FILES, overwrite=overwrite)
    loaded = load_target(target, seq_len, d_model)
    with (
        redirect_stdout(sys.stderr),  # what the user's function prints is no result
        progress_bar() as progress,
        new_folder(out, OWN_FILES, overwrite=overwrite) as folder,
    ):
        built = build(
            loaded,
            grid=grid,
            tol=tol,
            p=p,
            softened=not exact,
            positional=positional,
            max_memory=int(max_memory * 2**30),
            progress=progress,
        )
        report = cost_report(built)
        built.network.save(folder / NETWORK_FILE)
        (folder / COST_FILE).write_text(json.dumps(report, indent=2) + "\n")
        figure = pictures.along_a_line(loaded, built.network, progress)
        with (folder / PLOT_FILE).open("wb") as file:
            pictures.save(figure, file)
    if as_json:
        typer.echo(json.dumps(report | {"folder": str(out)}, indent=2))
        return
    tables.show(built.plan.table(), bound_text(built), "")
    if loaded.equivariant and built.plan.constants.positional and positional is None:
        tables.show(
            "Positions were added (Theorem 3): within float64, Theorem 2 loses too many "
            "cells with equal columns to meet the tolerance.",
            "",
        )
    tables.show(f"Wrote {NETWORK_FILE}, {COST_FILE} and {PLOT_FILE} to {out}.")


def cost_report(built: Built) -> dict[str, Any]:
    """What cost.json holds: the plan, the sizes, and the bound rounded up."""
    bound = built.distance_bound
    return {
        "plan": built.plan.to_json(),
        "cost": built.cost.to_json(),
        "distance_bound": None
        if bound is None
        else {"value": bound.format_value(), "text": str(bound)},
    }


def bound_text(built: Built) -> str:
    """The tree of bounds, or why there is none."""
    if built.distance_bound is None:
        return (
            f"No bound on the distance: {built.target.name} declares neither lipschitz nor "
            "modulus."
        )
    return str(built.distance_bound)
