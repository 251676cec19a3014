"""`everyformer plan`: what a network would cost."""

import json
from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options, pictures, tables
from everyformer.cli.loading import load_target
from everyformer.cli.progress import progress_bar
from everyformer.cli.saving import new_file
from everyformer.construct.comparison import Comparison
from everyformer.construct.comparison import compare as compare_methods
from everyformer.construct.registry import plan as make_plan
from everyformer.construct.shifts.plan import check_feasible
from everyformer.errors import EveryformerError


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
            "whose planned bound meets --tol. Writes a picture of bounds and parameters.",
        ),
    ] = False,
    tol: Annotated[
        float | None,
        typer.Option(
            metavar="EPS",
            help="With --compare, or instead of --grid with --method partition: d_p(f, g) "
            "allowed.",
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
    exact: options.ExactOption = False,
    positional: options.PositionalOption = None,
    attention: options.AttentionOption = "dense",
    method: options.MethodOption = "selective-shift",
    variant: options.VariantOption = "wide",
    decay: options.DecayOption = None,
    margin: options.MarginOption = None,
    pattern: options.PatternOption = None,
    width: options.WidthOption = None,
    parameters: options.ParametersOption = None,
    gamma: options.GammaOption = None,
    p: options.ExponentOption = 2.0,
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
        loaded = load_target(target, seq_len, d_model)
        sparse, path = options.sparse_settings(
            pattern, loaded.seq_len, width, parameters, gamma
        )
        with progress_bar() as progress:
            found = compare_methods(
                loaded,
                tol,
                p=p,
                positional=positional,
                attention=options.attention_kind(attention),
                pattern=sparse,
                gamma=path,
                progress=progress,
            )
        _show_comparison(found, plot, as_json=as_json)
        return
    chosen, how = options.method_and_variant(method, variant)
    if grid is None and (tol is None or chosen != "partition"):
        msg = (
            "Give --grid K; or --compare --tol EPS for all methods side by side; or --tol "
            "EPS with --method partition."
        )
        raise typer.BadParameter(msg)
    if (tol is not None and chosen != "partition") or plot is not None:
        msg = "--tol and --plot belong to --compare. Leave them out, or add it."
        raise typer.BadParameter(msg)
    loaded = load_target(target, seq_len, d_model)
    sparse, path = options.sparse_settings(
        pattern, loaded.seq_len, width, parameters, gamma
    )
    planned = make_plan(
        loaded,
        grid,
        tol=tol,
        softened=not exact,
        positional=positional,
        attention=options.attention_kind(attention),
        method=chosen,
        variant=how,
        pattern=sparse,
        gamma=path,
        decay=decay,
        margin=margin,
        p=p,
    )
    refusal = None
    try:
        check_feasible(planned)
    except EveryformerError as error:
        refusal = str(error)
    if as_json:
        typer.echo(json.dumps(planned.to_json() | {"refusal": refusal}, indent=2))
        return
    tables.show(planned.table())
    if refusal is not None:
        tables.show(f"It would not be built: {refusal}")


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
