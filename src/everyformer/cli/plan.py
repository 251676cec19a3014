"""`everyformer plan`: what a network would cost."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options, pictures, tables
from everyformer.cli.loading import load_target
from everyformer.cli.methods import read_method
from everyformer.cli.progress import progress_bar
from everyformer.cli.saving import new_file
from everyformer.construct.comparison import Comparison
from everyformer.construct.method import Method, check_feasible, plan_table
from everyformer.construct.pipeline import compare as compare_methods
from everyformer.construct.pipeline import plan as make_plan
from everyformer.construct.problem import DEFAULT_MAX_MEMORY
from everyformer.construct.registry import DEFAULT, is_compared
from everyformer.errors import EveryformerError
from everyformer.targets.target import Target

FIRST = (
    "The first plan that `construct --tol {0:g}` tries; where its certificate falls short, "
    "finer ones follow. What every method needs: plan --compare --tol {0:g}."
)


def plan(
    target: options.TargetArgument,
    grid: Annotated[
        int | None,
        typer.Option(metavar="K", help="Cells per axis.", show_default=False),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Instead of --grid: all methods side by side, each on the coarsest grid "
            "whose planned bound meets --tol, and --method sparse if it is given. Writes a "
            "picture of bounds and parameters.",
        ),
    ] = False,
    tol: Annotated[
        float | None,
        typer.Option(
            metavar="EPS",
            help="Instead of --grid: d_p(f, g) allowed. Shows the first plan that would be "
            "tried.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            help="With --compare: where the picture goes. [default: "
            "TARGET-comparison.png; with --json none]",
            show_default=False,
        ),
    ] = None,
    method: options.MethodOption = DEFAULT,
    settings: options.WithOption = None,
    trace: options.TraceOption = True,
    p: options.ExponentOption = None,
    seq_len: options.SeqLenOption = None,
    d_model: options.DModelOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what a network would cost, without building it.

    Layers of each step of the proof, parameters beside the lower bound of Section 5.4,
    bits of the largest id, memory; and whether `everyformer construct` would refuse.
    """
    if compare:
        if tol is None or grid is not None:
            msg = "--compare needs --tol and no --grid: every method gets its own grid."
            raise typer.BadParameter(msg)
        loaded = load_target(target, seq_len, d_model, trace=trace)
        also = _also(method, settings or (), loaded)
        with progress_bar() as progress:
            found = compare_methods(
                loaded,
                tol,
                p=2 if p is None else p,
                also=also,
                progress=progress,
            )
        _show_comparison(found, plot, as_json=as_json)
        return
    if (grid is None) == (tol is None):
        msg = "Give --grid K, or --tol EPS; or --compare --tol EPS for all side by side."
        raise typer.BadParameter(msg)
    if plot is not None:
        msg = "--plot belongs to --compare. Leave it out, or add --compare."
        raise typer.BadParameter(msg)
    loaded = load_target(target, seq_len, d_model, trace=trace)
    chosen = read_method(method, settings or (), loaded.seq_len)
    planned = make_plan(loaded, grid, tol=tol, p=p, method=chosen)
    refusal = None
    try:
        check_feasible(planned, DEFAULT_MAX_MEMORY)
    except EveryformerError as error:
        refusal = str(error)
    if as_json:
        typer.echo(json.dumps(planned.to_json() | {"refusal": refusal}, indent=2))
        return
    tables.show(plan_table(planned, loaded.name))
    if tol is not None:
        tables.show(FIRST.format(tol))
    if refusal is not None:
        tables.show(f"It would not be built: {refusal}")


def _also(name: str, settings: Sequence[str], target: Target) -> list[Method]:
    """The method that is asked for, if it is not compared anyhow.

    Raises:
        typer.BadParameter: If it is, and settings are given.
    """
    given = read_method(name, settings, target.seq_len)
    if not is_compared(given, target):
        return [given]
    if settings:
        msg = (
            f"--compare tries {name} with settings of its own. Leave --with out, or plan "
            f"it alone: --method {name} without --compare."
        )
        raise typer.BadParameter(msg)
    return []


def _show_comparison(found: Comparison, plot: Path | None, *, as_json: bool) -> None:
    if plot is None and not as_json:
        plot = Path(f"{found.target}-comparison.png")
    if plot is not None:
        with new_file(plot) as file:
            pictures.save(pictures.comparison(found), file)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
        return
    tables.show(found.table(), *found.remarks(), f"Wrote {plot}.")
