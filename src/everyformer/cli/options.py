"""Arguments and options that several commands share."""

import math
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from everyformer.errors import InputError
from everyformer.picture_formats import format_of


def _seq_len(told: str) -> Any:
    """-n, --seq-len: the number of tokens, of whatever the command is about."""
    text = f"Number of tokens{told}"
    return typer.Option("--seq-len", "-n", min=1, metavar="N", help=text)


def _d_model(told: str) -> Any:
    """-d, --d-model: the width of a token."""
    text = f"Width of a token{told}"
    return typer.Option("--d-model", "-d", min=1, metavar="D", help=text)


def out_folder(told: str) -> Any:
    """-o, --out: the folder that is written."""
    return typer.Option("--out", "-o", metavar="DIR", help=told)


def picture(told: str) -> Any:
    """--picture: the file that is drawn."""
    return typer.Option(
        "--picture",
        metavar="FILE",
        dir_okay=False,
        help=f"{told} The ending decides the format: .png, .pdf or .svg.",
        callback=_of_known_format,
    )


def _of_known_format(path: Path | None) -> Path | None:
    """Refuse the name of a picture before anything is computed for it."""
    if path is not None:
        try:
            format_of(path)
        except InputError as error:
            raise typer.BadParameter(str(error)) from error
    return path


SeqLenOption = Annotated[int, _seq_len(".")]

DModelOption = Annotated[int, _d_model(".")]

TargetSeqLenOption = Annotated[
    int | None, _seq_len(", for a target of the gallery. [default: 2]")
]

TargetDModelOption = Annotated[
    int | None, _d_model(", for a target of the gallery. [default: 1]")
]

PatternSeqLenOption = Annotated[
    int | None, _seq_len("; masks and graphs have their own. [default: 16]")
]

NewFolderOption = Annotated[Path, out_folder("Folder to write; it must be new or empty.")]

ReportFolderOption = Annotated[
    Path | None,
    out_folder(
        "Folder for report.json, pictures, and counterexamples as .npy files; it must be "
        "new or empty."
    ),
]

ResultFolderOption = Annotated[Path, out_folder("Folder for what is written.")]


def _cells(text: str) -> int:
    """--grid as an integer >= 2.

    Raises:
        typer.BadParameter: With what to write.
    """
    try:
        count = int(text)
    except ValueError as error:
        said = "give cells per axis, such as 8"
        if re.fullmatch(r"0?\.\d+|\d+e-\d+", text.strip()):
            said = (
                f"--grid counts cells per axis. For a distance write --tol {text.strip()}"
            )
        raise typer.BadParameter(f"{text!r} is not an integer; {said}.") from error
    if count < 2:
        raise typer.BadParameter(f"{count} cells per axis: it must be an integer >= 2.")
    return count


GridOption = Annotated[
    int | None,
    typer.Option(parser=_cells, metavar="K", help="Instead of --tol: cells per axis."),
]


def _tolerance(text: str) -> float:
    """--tol as a positive number.

    Raises:
        typer.BadParameter: With what to write.
    """
    try:
        distance = float(text)
    except ValueError as error:
        said = "give a distance such as 0.1"
        share = text.strip().removesuffix("%")
        if text.strip().endswith("%") and share.replace(".", "", 1).isdigit():
            said = f"it is a distance, not a share of one: write {float(share) / 100:g}"
        raise typer.BadParameter(f"{text!r} is not a number; {said}.") from error
    if not distance > 0:
        msg = f"{text!r} is not a positive number; give a distance such as 0.1."
        raise typer.BadParameter(msg)
    return distance


ToleranceOption = Annotated[
    float | None,
    typer.Option(
        parser=_tolerance,
        metavar="EPS",
        help="Distance d_p(f, g) allowed: the coarsest grid is taken whose bound meets it.",
    ),
]

MaxMemoryOption = Annotated[
    float,
    typer.Option(metavar="GIB", help="What would need more GiB of memory is refused."),
]

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="file.py:attribute, where the attribute is an everyformer.Target or a "
        "function without arguments that returns one; or a name that `everyformer "
        "targets` lists.",
    ),
]


def _exponent(text: str) -> float:
    """-p as a number >= 1.

    Raises:
        typer.BadParameter: With what to write.
    """
    try:
        p = float(text)
    except ValueError as error:
        msg = f"{text!r} is not a number; write it in digits, such as 1."
        raise typer.BadParameter(msg) from error
    if not p >= 1:
        raise typer.BadParameter(f"{text!r} is not a number >= 1; write 2, or inf.")
    return p


ExponentOption = Annotated[
    float | None,
    typer.Option(
        "-p",
        "--p",
        parser=_exponent,
        metavar="P",
        help="The exponent of d_p; inf for the supremum, which some methods bound. "
        "[default: the method's own]",
    ),
]

MethodOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The construction: {methods}. `everyformer methods` says what they are, and "
        "which settings they have.  [default: {default}]",
    ),
]

WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="KEY=VALUE",
        help="A setting of the method, such as positional=true, variant=narrow, or "
        "pattern=star of --method sparse; repeatable.",
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

HeadsOption = Annotated[int, typer.Option(min=1, metavar="H", help="Number of heads.")]

CausalOption = Annotated[bool, typer.Option("--causal", help="With a causal mask.")]

NoBiasOption = Annotated[bool, typer.Option("--no-bias", help="Without biases.")]

SpecialTokenOption = Annotated[
    bool, typer.Option("--special-token", help="Put a learnable token before the others.")
]

TrialsOption = Annotated[
    int,
    typer.Option(
        min=1, metavar="T", help="Draws of the weights to look for counterexamples in."
    ),
]

SeedOption = Annotated[
    int, typer.Option(min=0, max=2**31, metavar="S", help="What they are drawn from.")
]

ReplayOption = Annotated[
    Path | None,
    typer.Option(
        metavar="X.NPY",
        exists=True,
        dir_okay=False,
        help="Judge nothing, but run a counterexample that -o wrote again. Exit code 1 if "
        "it still is one, else 0.",
    ),
]

PatternOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="KEY=VALUE",
        help="A parameter of the pattern, as in Python: width=8, half_width=3, "
        "dilations=1,3, repaired=true, seed=1 where it is drawn; self_loops=true adds k k "
        "for every token to edges; with zero_based=true tokens are numbered from 0, not 1; "
        "repeatable.",
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

SchedulerOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on the Dask cluster with this scheduler, e.g. tcp://host:8786, instead "
        "of processes on this machine. The result is the same.",
    ),
]

WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="W", help="Processes on this machine. [default: one for each core]"
    ),
]

VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose", help="Show every term of the bounds, also those far below the others."
    ),
]

WorkOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of your own that keeps finished shards: give it again to go on after "
        "an interruption. Shards that are found there are trusted, not computed again.",
    ),
]

NetworkArgument = Annotated[
    Path,
    typer.Argument(
        metavar="NETWORK",
        exists=True,
        help="The folder that `everyformer construct` wrote, or a .safetensors file.",
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
    ),
]


def check_heads(heads: int, d_model: int) -> None:
    """Refuse heads that do not share the numbers of a token evenly.

    Raises:
        typer.BadParameter: If the numbers are not a multiple of the heads.
    """
    if heads > d_model:
        msg = f"--heads {heads} is more than --d-model {d_model}: a head has at least one"
        raise typer.BadParameter(f"{msg} number.")
    if d_model % heads:
        msg = f"--d-model {d_model} is not a multiple of --heads {heads}, so heads would"
        wider = d_model + -d_model % heads
        raise typer.BadParameter(f"{msg} have unequal sizes; take --d-model {wider}.")


def bytes_of(max_memory: float) -> int:
    """--max-memory in bytes.

    Raises:
        typer.BadParameter: If it is not a possible number of GiB.
    """
    if not 2**-30 <= max_memory <= 2**60:
        msg = f"--max-memory {max_memory:g} is not a positive number of GiB up to 2^60."
        raise typer.BadParameter(msg)
    return int(max_memory * 2**30)


def check_work(max_work: float) -> None:
    """Refuse --max-work that is no limit; nan would be one that nothing exceeds.

    Raises:
        typer.BadParameter: If it is not positive and finite.
    """
    if not 0 < max_work < math.inf:
        msg = f"--max-work {max_work:g} is not a positive, finite number of seconds."
        raise typer.BadParameter(msg)


BuiltArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="The folder that `everyformer construct` wrote.",
    ),
]
