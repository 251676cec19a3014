"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from everyformer.construct.averaging import Variant
from everyformer.construct.planning import Method
from everyformer.model.architecture import AttentionKind

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="file.py:attribute, where the attribute is an everyformer.Target or a "
        "function without arguments that returns one; or a name that `everyformer "
        "targets` lists.",
        show_default=False,
    ),
]

SeqLenOption = Annotated[
    int | None,
    typer.Option(
        "--seq-len",
        "-n",
        min=1,
        metavar="N",
        help="Number of tokens, for a target of the gallery. [default: 2]",
        show_default=False,
    ),
]

DModelOption = Annotated[
    int | None,
    typer.Option(
        "--d-model",
        "-d",
        min=1,
        metavar="D",
        help="Width of a token, for a target of the gallery. [default: 1]",
        show_default=False,
    ),
]

ExactOption = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="The modified network of the proof (hardmax, exact rationals) instead of the "
        "real one (softmax, ReLU, float64).",
    ),
]

PositionalOption = Annotated[
    bool | None,
    typer.Option(
        "--positional/--no-positional",
        help="Theorem 3 (with positions) or Theorem 2 (permutation equivariant). By "
        "default Theorem 2 for targets declared equivariant, unless `construct --tol` is "
        "out of its reach.",
        show_default=False,
    ),
]

ExponentOption = Annotated[
    float, typer.Option("-p", "--p", metavar="P", help="The exponent of d_p.")
]

AttentionOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="dense, or urpe: no positions are added to the input, the first attention "
        "layer makes them (Luo et al. 2022).",
    ),
]


MethodOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="selective-shift (Yun et al. 2020), or averaging: one attention layer, a "
        "plain mean.",
    ),
]

VariantOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Of --method averaging: wide (few blocks, many hidden units), narrow (two "
        "hidden units a block), or two-step (wide, for narrow ramps).",
    ),
]


def method_and_variant(method: str, variant: str) -> tuple[Method, Variant]:
    """The method and the variant of these names.

    Raises:
        typer.BadParameter: If there is none.
    """
    for option, name, kind in (("method", method, Method), ("variant", variant, Variant)):
        if name not in get_args(kind):
            known = ", ".join(get_args(kind))
            msg = f"--{option} {name} does not exist. Choose one of {known}."
            raise typer.BadParameter(msg)
    return cast("Method", method), cast("Variant", variant)


def attention_kind(name: str) -> AttentionKind:
    """The attention of that name.

    Raises:
        typer.BadParameter: If there is none.
    """
    if name not in get_args(AttentionKind):
        known = ", ".join(get_args(AttentionKind))
        msg = f"--attention {name} does not exist. Choose one of {known}."
        raise typer.BadParameter(msg)
    return cast("AttentionKind", name)


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON and nothing else.", show_default=False)
]

SchedulerOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on the Dask cluster with this scheduler, e.g. tcp://host:8786, instead "
        "of processes on this machine. The result is the same.",
        show_default=False,
    ),
]

WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="W",
        help="Processes on this machine. [default: one for each core]",
        show_default=False,
    ),
]

WorkOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of your own that keeps finished shards: give it again to go on after "
        "an interruption. What lies there is believed.",
        show_default=False,
    ),
]

NetworkArgument = Annotated[
    Path,
    typer.Argument(
        metavar="NETWORK",
        exists=True,
        help="The folder that `everyformer construct` wrote, or a .safetensors file.",
        show_default=False,
    ),
]

InputOption = Annotated[
    Path,
    typer.Option(
        "--input",
        exists=True,
        dir_okay=False,
        metavar="X.NPY",
        help="Sequences, tokens as rows: an array of shape (..., n, d).",
        show_default=False,
    ),
]
