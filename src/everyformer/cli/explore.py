"""`everyformer explore`: a page that runs a network in the browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everyformer.cli import options

if TYPE_CHECKING:
    from everyformer.explore.show import Page

GRID = 4
"""K where neither a grid nor a tolerance is given."""

TOLERANCE = 0.01
"""For methods without a grid."""


def explore(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR|TARGET]",
            help="A folder that `everyformer construct` wrote, a .safetensors file, or a "
            "target as `everyformer construct` takes it, whose network is built now.",
            show_default=False,
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
            show_default=False,
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
) -> None:
    """Make a page that runs a network in the browser, block by block.

    One HTML file with everything in it: tokens to drag, the proof as a track with each
    lemma and this network's numbers, ids, attention, f beside g, the certificate, and a
    guided tour. It needs no server and loads nothing. Without -o it is written to a
    temporary place and opened.
    """
    from everyformer.cli import tables
    from everyformer.cli.saving import check_parent, new_file, resolved

    if out is not None:
        check_parent(resolved(out), str(out))
    if subject is None:
        msg = "Give a folder that `everyformer construct` wrote, or a target such as sort."
        raise typer.BadParameter(msg)
    path = Path(subject)
    if path.exists() and (path.is_dir() or path.suffix == ".safetensors"):
        given = (grid, tol, p, method, settings, seq_len, d_model)
        if any(one is not None for one in given):
            msg = f"{subject} holds a network that is built already. Leave the others out."
            raise typer.BadParameter(msg)
        page = _of_folder(path)
    else:
        page = _of_target(
            subject, (seq_len, d_model), (grid, tol, p), method, settings, trace=trace
        )
    if out is not None:
        with new_file(out) as file:
            file.write(page.html.encode("utf-8"))
        tables.show(f"Wrote {out} ({len(page.html) / 1024:,.0f} KiB).")
    elif show:
        tables.show(f"Opened {page.open()} in the browser.")
    else:
        tables.show(f"Wrote {page.in_temporary_place().as_uri()}")


def _of_folder(path: Path) -> "Page":
    from everyformer.certify.certificate import CERTIFICATE_FILE, read_certificate
    from everyformer.cli.loading import load_network
    from everyformer.explore.show import network_page

    certificate = None
    if path.is_dir() and (path / CERTIFICATE_FILE).is_file():
        certificate = read_certificate(path)
    return network_page(load_network(path), certificate=certificate)


def _of_target(
    name: str,
    sizes: tuple[int | None, int | None],
    asked: tuple[int | None, float | None, float | None],
    method: str | None,
    settings: list[str] | None,
    *,
    trace: bool,
) -> "Page":
    import sys
    from contextlib import redirect_stdout

    from everyformer.cli.loading import load_target
    from everyformer.cli.method_settings import read_method
    from everyformer.cli.progress import progress_bar
    from everyformer.construct.pipeline import construct, plan
    from everyformer.construct.registry import DEFAULT
    from everyformer.explore.network_data import refuse_large
    from everyformer.explore.show import explore as show

    grid, tol, p = asked
    if grid is not None and tol is not None:
        raise typer.BadParameter("Give --grid or --tol, not both.")
    loaded = load_target(name, *sizes, trace=trace)
    chosen = read_method(
        DEFAULT if method is None else method, settings or (), loaded.seq_len
    )
    if grid is None and tol is None:
        grid, tol = (None, TOLERANCE) if method in ("compile", "auto") else (GRID, None)
    if grid is not None:
        count = plan(loaded, grid, p=p, method=chosen).count()
        refuse_large(count.blocks, count.stored_bytes, grid)
    with redirect_stdout(sys.stderr), progress_bar() as progress:
        built = construct(loaded, grid=grid, tol=tol, p=p, method=chosen, progress=progress)
        return show(built)
