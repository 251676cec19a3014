"""`everyformer explore`: a page that runs a network in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.names import (
    check_layer,
    check_method,
    check_pattern_name,
    check_target,
)
from everyformer.cli.saving import check_parent, new_file, resolved

EXAMPLE = "everyformer explore sort -n 3 --grid 4 -o page.html"


def explore(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR|TARGET]",
            help="A folder that `everyformer construct` wrote, a .safetensors file, or a "
            "target as `everyformer construct` takes it, whose network is built now.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PAGE.HTML",
            dir_okay=False,
            help="Where to write the page. [default: a temporary place]",
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--open/--no-open",
            help="Whether a page in a temporary place is opened in the browser.",
        ),
    ] = True,
    grid: options.GridOption = None,
    tol: options.ToleranceOption = None,
    p: options.ExponentOption = None,
    method: options.MethodOption = None,
    settings: options.WithOption = None,
    trace: options.TraceOption = True,
    seq_len: options.TargetSeqLenOption = None,
    d_model: options.TargetDModelOption = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead: a sparse pattern, as `check-pattern` takes it, with -n and "
            "--with KEY=VALUE.",
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="LAYER",
            help="Instead: an attention layer of the library, as `check` takes it, with -n "
            "and -d.",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="With TARGET and --tol: all methods, bound against parameters.",
        ),
    ] = False,
    site: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Of the documentation that `make docs` built: the page of a network links "
            "to what describes each stage.",
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Of the files of the repository: links to the line that builds a stage.",
        ),
    ] = None,
    tour: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.JSON",
            dir_okay=False,
            help="A guided tour of your own, in the form that the documentation of the "
            "explorer describes.",
        ),
    ] = None,
) -> None:
    """Make a page that runs a network in the browser.

    The page is one HTML file with everything in it, which runs block by block: tokens
    to drag, the proof as a track with each lemma and this network's numbers, ids,
    attention, f beside g, the certificate, and a guided tour. It needs no server and
    loads nothing. Without -o it is written to a temporary place and opened.
    """
    if out is not None:
        check_parent(resolved(out), str(out))
    chosen = [one for one in (subject, pattern, check) if one is not None]
    if len(chosen) != 1:
        msg = (
            "Give one of these: a folder that `everyformer construct` wrote, a target such "
            "as sort, --pattern NAME, or --check LAYER."
        )
        raise typer.BadParameter(msg)
    if pattern is not None:
        check_pattern_name(pattern)
    if check is not None:
        check_layer(check)
    if subject is not None and not _is_network(Path(subject)):
        check_target(subject, seq_len, d_model)
        check_method(method)
    from everyformer.cli import exploring, tables

    links = exploring.Links(site, code)
    asked = exploring.Asked(
        grid, tol, p, method, settings, trace, seq_len, d_model, links, tour
    )
    if pattern is not None:
        page = exploring.of_pattern(pattern, asked)
    elif check is not None:
        page = exploring.of_layer(check, asked)
    elif compare:
        page = exploring.of_comparison(chosen[0], asked)
    else:
        page = exploring.of_network(chosen[0], asked)
    if out is not None:
        with new_file(out) as file:
            file.write(page.html.encode("utf-8"))
        tables.show(f"Wrote {out} ({len(page.html) / 1024:,.0f} KiB).")
    elif show:
        tables.show(f"Opened {page.open()} in the browser.")
    else:
        typer.echo(f"Wrote {page.in_temporary_place().as_uri()}")


def _is_network(path: Path) -> bool:
    """Whether something is there that `everyformer construct` may have written."""
    return path.exists() and (path.is_dir() or path.suffix == ".safetensors")
