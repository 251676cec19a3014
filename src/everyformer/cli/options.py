"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

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

ExponentOption = Annotated[
    float | None,
    typer.Option(
        "-p",
        "--p",
        metavar="P",
        help="The exponent of d_p; inf for the supremum, which some methods bound. "
        "[default: the method's own]",
        show_default=False,
    ),
]

MethodOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The construction: {methods}. `everyformer methods` says what they are, and "
        "which settings they have.  [default: {default}]",
        show_default=False,
    ),
]

WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="KEY=VALUE",
        help="A setting of the method, such as positional=true, variant=narrow, or "
        "pattern=star of --method sparse; repeatable.",
        show_default=False,
    ),
]

TraceOption = Annotated[
    bool,
    typer.Option(
        "--trace/--no-trace",
        help="Whether f may be known by its numpy operations, where they can be traced; "
        "else by the Lipschitz constant or modulus that the target declares.",
    ),
]

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
