"""`everyformer check`: is this attention universal?"""

from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.defaults import SEARCH_SECONDS, TRIALS


def check(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="SUBJECT",
            help="A layer of the library: none, ape, t5, t5-buckets, alibi, rotary, shaw, "
            "shaw-values, deberta, xl, swin, graphormer, urpe, or one of them with +urpe; "
            "`all` for a table of them; or file.py:attribute, a torch.nn.Module of your "
            "own that maps (batch, n, d) or (n, batch, d) to the same shape, or its class.",
            show_default=False,
        ),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(
            "--n", "-n", help="Number of tokens. [default: 16]", show_default=False
        ),
    ] = None,
    d: Annotated[int, typer.Option("--d", "-d", help="Width of a token.")] = 8,
    heads: Annotated[int, typer.Option(help="Number of heads.")] = 2,
    causal: Annotated[
        bool, typer.Option("--causal", help="A layer of the library with a causal mask.")
    ] = False,
    no_bias: Annotated[
        bool, typer.Option("--no-bias", help="A layer of the library without biases.")
    ] = False,
    special_token: Annotated[
        bool,
        typer.Option("--special-token", help="Put a learnable token before the others."),
    ] = False,
    trials: Annotated[
        int,
        typer.Option(min=1, help="Draws of the weights to look for counterexamples in."),
    ] = TRIALS,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31, help="What they are drawn from.")
    ] = 0,
    layout: Annotated[
        str,
        typer.Option(
            metavar="LAYOUT",
            help="Where a module of your own has its tokens: batch_first, (batch, n, d), "
            "or tokens_first, (n, batch, d); auto finds out, by a batch of two.",
        ),
    ] = "auto",
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of a layer: a sparse pattern, judged by Assumptions 1 and 2 of "
            "Yun et al. 2020b. dense, causal, strided, fixed, star, bare-star, window, "
            "window-global, bigbird, bigbird-blocks, ring, log-sparse, dilated, axial, "
            "block-local or random; or your own: masks.npy, boolean (n, n) or (p, n, n); "
            "edges.txt with a line `j k` where token k attends to token j; several files "
            "with commas between are cycled; or file.py:attribute, a pattern, a networkx "
            "graph or masks.",
            show_default=False,
        ),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(metavar="W", help="w of a pattern that has one.", show_default=False),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="KEY=VALUE",
            help="Another parameter of the pattern, as in Python: half_width=3, "
            "dilations=1,3, repaired=true; repeatable.",
            show_default=False,
        ),
    ] = None,
    union: Annotated[
        bool, typer.Option("--union", help="Judge the union of the pattern's parts.")
    ] = False,
    rho: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For --pattern, what replaces softmax: sparsemax, hardmax, top-k:4, "
            "entmax:1.5, sparsegen:0.5, sparsehourglass:0.1, sum-normalisation, "
            "spherical-softmax, or file.py:function.",
        ),
    ] = "softmax",
    gamma: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS",
            help="For --pattern: a Hamiltonian path to verify, such as 2,1,3, or a .txt "
            "file of it.",
            show_default=False,
        ),
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="For --pattern: for the search of gamma, and for the count of s.",
        ),
    ] = SEARCH_SECONDS,
    zero_based: Annotated[
        bool,
        typer.Option(
            "--zero-based",
            help="Tokens in --gamma, --with and edges are numbered from 0, not 1.",
        ),
    ] = False,
    self_loops: Annotated[
        bool, typer.Option("--self-loops", help="Add k k for every token to edges.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.PNG",
            dir_okay=False,
            help="For --pattern: draw it there.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            help="Folder for report.json, counterexamples as .npy files, and pictures.",
            show_default=False,
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="X.NPY",
            exists=True,
            dir_okay=False,
            help="Run a counterexample that -o wrote again, on the same subject. Exit code "
            "1 if it still is one, else 0.",
            show_default=False,
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Print a rule, such as EF003, or an assumption, such as A1.2.",
            show_default=False,
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Judge whether an attention layer, or a sparse pattern, can be universal.

    PROVED comes with the theorem, REFUTED with a counterexample or a target whose distance
    is bounded below whatever the weights, UNKNOWN with what was tried. A module of yours is
    followed operation by operation, for all weights; what that does not decide is measured,
    and never called proved. Exit code 0: PROVED. 1: REFUTED. 3: UNKNOWN. 2: wrong input.
    """
    if explain is not None:
        from everyformer.cli.checking import explain_rule

        explain_rule(explain)
        return
    if pattern is not None:
        if subject is not None or causal or no_bias or special_token or replay is not None:
            msg = f"--pattern {pattern} is judged alone: leave out SUBJECT, --causal, "
            raise typer.BadParameter(f"{msg}--no-bias, --special-token and --replay.")
        _refuse_layout(layout, f"--pattern {pattern} has no module to feed")
        from everyformer.cli.check_pattern import PatternOptions, exit_code

        code = exit_code(
            PatternOptions(
                pattern, n, width, parameters or [], union, seed, rho, gamma, time_limit,
                zero_based, self_loops, picture, out, as_json,
            )
        )  # fmt: skip
        if code:
            raise typer.Exit(code)
        return
    if subject is None:
        msg = "Name a layer, file.py:attribute, --pattern NAME or --explain CODE."
        raise typer.BadParameter(msg)
    if heads > d > 0:
        msg = f"--heads {heads} is more than --d {d}: a head has at least one number."
        raise typer.BadParameter(msg)
    if subject == "all":
        if replay is not None:
            raise typer.BadParameter("--replay runs one counterexample on one subject.")
        _refuse_layout(layout, "all layers of the library take (batch, n, d)")
    from everyformer.cli.checking import Choice, check_all, check_one

    flags = {"causal": causal, "bias": not no_bias, "special_token": special_token}
    choice = Choice(n, d, heads, flags, trials, seed, layout, out, as_json)
    if subject == "all":
        check_all(choice)
        return
    code = check_one(subject, replay, choice)
    if code:
        raise typer.Exit(code)


def _refuse_layout(layout: str, why: str) -> None:
    if layout != "auto":
        msg = f"--layout {layout} says where a module of your own has its tokens, but {why}"
        raise typer.BadParameter(f"{msg}. Leave --layout out.")
