"""`everyformer plan`: what a network would cost."""

import json
from typing import Annotated

import typer

from everyformer.cli import options, tables
from everyformer.cli.loading import load_target
from everyformer.construct.plan import check_feasible
from everyformer.construct.planning import plan as make_plan
from everyformer.errors import EveryformerError


def plan(
    target: options.TargetArgument,
    grid: Annotated[
        int,
        typer.Option(metavar="K", help="Cells per axis.", show_default=False),
    ],
    exact: options.ExactOption = False,
    positional: options.PositionalOption = None,
    attention: options.AttentionOption = "dense",
    method: options.MethodOption = "selective-shift",
    variant: options.VariantOption = "wide",
    p: options.ExponentOption = 2.0,
    seq_len: options.SeqLenOption = None,
    d_model: options.DModelOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what a network would cost, without building it.

    Layers of each step of the proof, parameters beside the lower bound of Section 5.4,
    bits of the largest id, memory; and whether `everyformer construct` would refuse.
    """
    chosen, how = options.method_and_variant(method, variant)
    planned = make_plan(
        load_target(target, seq_len, d_model),
        grid,
        softened=not exact,
        positional=positional,
        attention=options.attention_kind(attention),
        method=chosen,
        variant=how,
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
