"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from everyformer.cli.pattern_files import load_pattern, read_path
from everyformer.construct.averaging.layers import Variant
from everyformer.construct.registry import Method
from everyformer.construct.shifts.sparse_constants import SparseVariant
from everyformer.model.architecture import AttentionKind
from everyformer.patterns.pattern import Pattern

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
    float,
    typer.Option(
        "-p",
        "--p",
        metavar="P",
        help="The exponent of d_p; inf with --method partition.",
    ),
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
        help="selective-shift (Yun et al. 2020); averaging: one attention layer, a plain "
        "mean; partition: softmax over prefix tokens, an error of second order; or, with "
        "`construct --tol`, auto: the one of them with the fewest parameters.",
    ),
]

DecayOption = Annotated[
    float | None,
    typer.Option(
        metavar="D",
        help="Of --method partition: weights fall as exp(-D r^2) at r steps of the grid. "
        "[default: the best of 3/4, 1, 3/2, 2, 3]",
        show_default=False,
    ),
]

MarginOption = Annotated[
    int | None,
    typer.Option(
        metavar="M",
        min=1,
        help="Of --method partition: steps of the grid beyond the domain. [default: 1 to "
        "4, as is best; 2 with --grid]",
        show_default=False,
    ),
]

VariantOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Of --method averaging: wide (few blocks, many hidden units), narrow (two "
        "hidden units a block), or two-step (wide, for narrow ramps). Of --pattern: wide "
        "(a window for each token), or sweep (one for each token and column).",
    ),
]

PatternOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Sparse attention (Yun et al. 2020b): star, strided, fixed, window, ring, "
        "axial and the others of `check --pattern`, by name or from a file.",
        show_default=False,
    ),
]

WidthOption = Annotated[
    int | None,
    typer.Option(metavar="W", help="w of a pattern that has one.", show_default=False),
]

ParametersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="KEY=VALUE",
        help="Another parameter of the pattern, such as half_width=3; repeatable.",
        show_default=False,
    ),
]

GammaOption = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENS",
        help="A Hamiltonian path through the pattern, such as 2,1,3. [default: one is "
        "looked for]",
        show_default=False,
    ),
]


def sparse_settings(
    name: str | None,
    seq_len: int,
    width: int | None,
    parameters: list[str] | None,
    gamma: str | None,
) -> tuple[Pattern | None, tuple[int, ...] | None]:
    """The pattern and the path, 0-based, that these options name.

    Raises:
        typer.BadParameter: If there are settings of a pattern, and no pattern.
        PatternError: If there is no such pattern.
    """
    if name is None:
        if width is not None or parameters or gamma is not None:
            msg = "--width, --with and --gamma are settings of a pattern. Give --pattern."
            raise typer.BadParameter(msg)
        return None, None
    chosen = [*(parameters or []), *([] if width is None else [f"width={width}"])]
    sized = None if name == "axial" else seq_len  # it has rows and columns
    path = None if gamma is None else read_path(gamma, zero_based=False)
    return load_pattern(name, sized, chosen), path


def method_and_variant(method: str, variant: str) -> tuple[Method, Variant | SparseVariant]:
    """The method and the variant of these names.

    Raises:
        typer.BadParameter: If there is none.
    """
    variants = dict.fromkeys((*get_args(Variant), *get_args(SparseVariant)))
    for option, name, names in (
        ("method", method, get_args(Method)),
        ("variant", variant, tuple(variants)),
    ):
        if name not in names:
            known = ", ".join(names)
            msg = f"--{option} {name} does not exist. Choose one of {known}."
            raise typer.BadParameter(msg)
    return cast("Method", method), cast("Variant | SparseVariant", variant)


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
