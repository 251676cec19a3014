"""`everyformer check-pattern`: is attention with this sparse pattern universal?"""

from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.defaults import SEARCH_SECONDS
from everyformer.cli.names import check_pattern_name, check_rho
from everyformer.cli.saving import check_parent, check_report_folder

EXAMPLE = "everyformer check-pattern strided -n 64 --with width=8"


def check_pattern(
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="PATTERN",
            help="dense, causal, strided, fixed, star, star-first, bare-star, window, "
            "window-global, bigbird, bigbird-blocks, ring, log-sparse, dilated, axial, "
            "block-local or random; or your own: masks.npy, boolean (n, n) or (p, n, n); "
            "edges.txt with a line `j k` where token k attends to token j; several files "
            "with commas between are cycled; or file.py:attribute, a pattern, a networkx "
            "graph or masks.",
        ),
    ],
    seq_len: options.PatternSeqLenOption = None,
    parameters: options.PatternOption = None,
    union: Annotated[
        bool, typer.Option("--union", help="Judge the union of the pattern's parts.")
    ] = False,
    causal: Annotated[
        bool,
        typer.Option(
            "--causal",
            help="Judge the causal part of the pattern: no token hears a later one.",
        ),
    ] = False,
    rho: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What replaces softmax: sparsemax, hardmax, top-k:4, entmax:1.5, "
            "sparsegen:0.5, sparsehourglass:0.1, sum-normalisation, spherical-softmax, or "
            "file.py:function.",
        ),
    ] = "softmax",
    gamma: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS",
            help="A Hamiltonian path to verify, such as 2,1,3, or a .txt file of it.",
        ),
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="For the search of gamma, and for the count of s.",
        ),
    ] = SEARCH_SECONDS,
    picture: Annotated[Path | None, options.picture("Draw the pattern there.")] = None,
    out: options.ReportFolderOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Judge attention with a sparse pattern.

    Says whether it can be universal, by Assumptions 1 and 2 of Yun et al. 2020b. PROVED
    comes with the theorem, REFUTED with a token that never hears another, UNKNOWN with
    the assumption that fails. Exit code 0: PROVED. 1: REFUTED. 3: UNKNOWN. 2: wrong
    input.
    """
    check_pattern_name(pattern)
    check_rho(rho)
    check_report_folder(out)
    if picture is not None:
        check_parent(picture, str(picture))
    from everyformer.cli.pattern_checking import report_of, show

    report = report_of(
        pattern,
        seq_len,
        parameters,
        union=union,
        causal=causal,
        rho=rho,
        gamma=gamma,
        time_limit=time_limit,
    )
    show(report, picture=picture, out=out, as_json=as_json)
    raise typer.Exit(report.verdict.exit_code)
