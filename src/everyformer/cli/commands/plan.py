"""`everyformer plan`: what a network would cost."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.names import check_method, check_target
from everyformer.errors import EveryformerError

EXAMPLE = "everyformer plan sort --grid 16 -n 2"

FIRST = (
    "The first plan that `construct --tol {0:g}` builds; where its certificate falls "
    "short, finer ones follow. What every method needs: plan --compare --tol {0:g}."
)


def plan(
    target: options.TargetArgument,
    tol: options.ToleranceOption = None,
    grid: options.GridOption = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="With --tol: all methods side by side, each on the coarsest grid whose "
            "planned bound meets it, and --method sparse if it is given; beside them a "
            "residual network. Draws bounds against parameters, and parameters over the "
            "lower bound of Section 5.4 against K.",
        ),
    ] = False,
    picture: Annotated[
        Path | None,
        options.picture(
            "With --compare: where it is drawn [default: TARGET-comparison.png; with "
            "--json nowhere]."
        ),
    ] = None,
    method: options.MethodOption = None,
    settings: options.WithOption = None,
    trace: options.TraceOption = True,
    p: options.ExponentOption = None,
    seq_len: options.TargetSeqLenOption = None,
    d_model: options.TargetDModelOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what a network would cost, without building it.

    Layers of each step of the proof, parameters beside the lower bound of Section 5.4,
    bits of the largest id, memory; and whether `everyformer construct` would refuse.
    """
    check_target(target, seq_len, d_model)
    check_method(method)
    if compare:
        if tol is None or grid is not None:
            msg = "--compare needs --tol and no --grid: every method gets its own grid."
            raise typer.BadParameter(msg)
        from everyformer.cli.comparing import also_compared, show_comparison
        from everyformer.cli.loading import load_target
        from everyformer.cli.progress import progress_bar
        from everyformer.construct.pipeline import compare as compare_methods

        loaded = load_target(target, seq_len, d_model, trace=trace)
        with redirect_stdout(sys.stderr), progress_bar() as progress:
            also = also_compared(method, settings, loaded)
            p = 2 if p is None else p
            found = compare_methods(loaded, tol, p=p, also=also, progress=progress)
        show_comparison(found, picture, as_json=as_json)
        return
    if (grid is None) == (tol is None):
        msg = "Give --grid K, or --tol EPS; or --compare --tol EPS for all side by side."
        raise typer.BadParameter(msg)
    if picture is not None:
        msg = "--picture belongs to --compare. Leave it out, or add --compare."
        raise typer.BadParameter(msg)
    from everyformer.cli import tables
    from everyformer.cli.loading import load_target
    from everyformer.cli.method_settings import read_method
    from everyformer.construct.method import check_feasible, plan_table
    from everyformer.construct.pipeline import plan as make_plan
    from everyformer.construct.problem import DEFAULT_MAX_MEMORY

    loaded = load_target(target, seq_len, d_model, trace=trace)
    chosen = read_method(method, settings, loaded.seq_len)
    with redirect_stdout(sys.stderr):  # results alone go to stdout
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
