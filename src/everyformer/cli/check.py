"""`everyformer check`: is this attention universal?"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from everyformer.certify.verify import EXIT_CODES
from everyformer.checks.finding import Counterexample
from everyformer.checks.patterns import ASSUMPTIONS
from everyformer.checks.replay import Replayed
from everyformer.checks.replay import replay as run_again
from everyformer.checks.report import DEFAULT_TRIALS, Report
from everyformer.checks.report import check as judge
from everyformer.checks.rules import RULES, rule_of
from everyformer.checks.subject import Subject, check_sizes
from everyformer.cli import attention_pictures, check_pattern, options, tables
from everyformer.cli.pattern_files import DEFAULT_N
from everyformer.cli.progress import progress_bar
from everyformer.cli.report_texts import answers, findings_table
from everyformer.cli.saving import check_new_folder, new_file, new_folder
from everyformer.cli.subjects import load_subject
from everyformer.layers.by_name import LAYER_NAMES
from everyformer.patterns.assumption_1 import TIME_LIMIT

ENDING = "`everyformer check --explain CODE` tells what a rule means."


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
    ] = DEFAULT_TRIALS,
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
    ] = TIME_LIMIT,
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
        text = ASSUMPTIONS.get(explain.upper()) or rule_of(explain).text
        tables.show((text or "").rstrip())
        return
    if pattern is not None:
        if subject is not None or causal or no_bias or special_token or replay is not None:
            msg = f"--pattern {pattern} is judged alone: leave out SUBJECT, --causal, "
            raise typer.BadParameter(f"{msg}--no-bias, --special-token and --replay.")
        _refuse_layout(layout, f"--pattern {pattern} has no module to feed")
        judged_pattern = check_pattern.run(
            check_pattern.PatternOptions(
                pattern, n, width, parameters or [], union, seed, rho, gamma, time_limit,
                zero_based, self_loops, picture, out, as_json,
            )
        )  # fmt: skip
        if EXIT_CODES[judged_pattern.verdict]:
            raise typer.Exit(EXIT_CODES[judged_pattern.verdict])
        return
    if subject is None:
        msg = "Name a layer, file.py:attribute, --pattern NAME or --explain CODE."
        raise typer.BadParameter(msg)
    n = DEFAULT_N if n is None else n
    check_sizes(n, d)
    if heads > d:
        msg = f"--heads {heads} is more than --d {d}: a head has at least one number."
        raise typer.BadParameter(msg)
    if out is not None:
        check_new_folder(out, frozenset(), overwrite=False)
    flags = {"causal": causal, "bias": not no_bias, "special_token": special_token}
    if subject == "all":
        if replay is not None:
            raise typer.BadParameter("--replay runs one counterexample on one subject.")
        _refuse_layout(layout, "all layers of the library take (batch, n, d)")
        _check_all(n, d, heads, flags, trials, seed, out, as_json)
        return
    with progress_bar() as progress, redirect_stdout(sys.stderr):
        progress(f"check {subject}", 0, len(RULES))
        module = load_subject(subject, n, d, heads, **flags)
        judged = Subject.of(module, n, d, subject, layout)
        if replay is None:
            report = judge(judged, trials=trials, seed=seed, progress=progress)
            code = EXIT_CODES[report.verdict]
            if out is not None:
                _save(report, judged, out)
        else:
            report = run_again(judged, Counterexample.load(replay))
            code = int(report.still_violates)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    elif isinstance(report, Replayed):
        tables.show(str(report))
    else:
        tables.show(_heading(report), findings_table(report.findings), ENDING)
        if out is not None:
            tables.show(f"Wrote {out}.")
    if code:
        raise typer.Exit(code)


def _refuse_layout(layout: str, why: str) -> None:
    if layout != "auto":
        msg = f"--layout {layout} says where a module of your own has its tokens, but {why}"
        raise typer.BadParameter(f"{msg}. Leave --layout out.")


def _heading(report: Report) -> str:
    sizes = f"n = {report.seq_len}, d = {report.d_model}"
    heading = f"{report.verdict}: is {report.subject} universal? ({sizes})"
    return answers(heading, report.lp, report.sup)


def _save(report: Report, subject: Subject, out: Path) -> None:
    """Write the report, the counterexamples and the pictures."""
    with new_folder(out, frozenset(), overwrite=False) as place:
        for found in report.findings:
            if found.counterexample is not None:
                found.counterexample.save(place, report.subject)
        text = json.dumps(report.to_json(), indent=2) + "\n"
        (place / "report.json").write_text(text)
        for name, figure in attention_pictures.of_subject(subject).items():
            with new_file(place / name) as file:
                attention_pictures.save(figure, file)


def _check_all(
    n: int,
    d: int,
    heads: int,
    flags: dict[str, bool],
    trials: int,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """A line for each layer of the library, alone and with URPE."""
    names = [*LAYER_NAMES[:-1], *(f"{name}+urpe" for name in LAYER_NAMES[:-1])]
    reports: list[Report] = []
    with progress_bar() as progress, redirect_stdout(sys.stderr):
        for k, name in enumerate(names):
            progress("check all layers", k, len(names))
            module = load_subject(name, n, d, heads, **flags)
            reports.append(judge(Subject.of(module, n, d, name), trials=trials, seed=seed))
    if out is not None:
        figure = attention_pictures.spreads(reports)
        with (
            new_folder(out, frozenset(), overwrite=False) as place,
            new_file(place / "spreads.png") as file,
        ):
            attention_pictures.save(figure, file)
    if as_json:
        typer.echo(json.dumps([report.to_json() for report in reports], indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("layer", "universal?", "in L^p", "in the sup norm", "equal tokens"):
        table.add_column(heading, no_wrap=True)
    for report in reports:
        spread = report["EF003"].violation_sampled
        table.add_row(
            report.subject,
            str(report.verdict),
            str(report.lp.verdict),
            str(report.sup.verdict),
            "" if spread is None else f"spread {spread:.1e}",
        )
    tables.show(table)
    if out is not None:
        tables.show(f"Wrote {out / 'spreads.png'}.")
