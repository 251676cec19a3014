"""The pages of `everyformer explore`, from what the command line says."""

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import typer

from everyformer.certify.certificate_file import read_certificate
from everyformer.cli.defaults import (
    CHECK_D_MODEL,
    CHECK_HEADS,
    CHECK_SEQ_LEN,
    TRIALS,
)
from everyformer.cli.loading import load_network, load_target
from everyformer.cli.method_settings import read_method
from everyformer.cli.progress import progress_bar
from everyformer.construct.pipeline import compare, construct, plan
from everyformer.explore.network_data import refuse_large
from everyformer.explore.show import Links, explore, network_page
from everyformer.explore.tour import read_tour
from everyformer.files.names import CERTIFICATE_FILE
from everyformer.page import Page

GRID = 4
"""K where neither a grid nor a tolerance is given."""

TOLERANCE = 0.01
"""For methods that take no grid."""


@dataclass(frozen=True)
class Asked:
    """What the command line says, apart from the subject.

    Attributes:
        grid: K.
        tol: The distance allowed.
        p: The exponent.
        method: Name of the construction.
        settings: KEY=VALUE, of the method or the pattern.
        trace: Whether f may be traced.
        seq_len: n.
        d_model: d.
        links: Where the page of a network sends its reader.
        tour: The file of its guided tour.
    """

    grid: int | None
    tol: float | None
    p: float | None
    method: str | None
    settings: list[str] | None
    trace: bool
    seq_len: int | None
    d_model: int | None
    links: Links
    tour: Path | None = None

    def refuse(self, subject: str, *names: str) -> None:
        """Refuse options that mean nothing for a subject.

        Raises:
            typer.BadParameter: Naming the first.
        """
        given = [name for name in names if getattr(self, name) is not None]
        if given:
            option = {"settings": "with"}.get(given[0], given[0]).replace("_", "-")
            raise typer.BadParameter(
                f"--{option} means nothing for {subject}. Leave it out."
            )


def of_network(subject: str, asked: Asked) -> Page:
    """The page of a network in a folder, or of one that is built now."""
    path = Path(subject)
    if path.exists() and (path.is_dir() or path.suffix == ".safetensors"):
        names = ("grid", "tol", "p", "method", "settings", "seq_len", "d_model")
        asked.refuse(f"{subject}, a network that is built already", *names)
        certificate = None
        if path.is_dir() and (path / CERTIFICATE_FILE).is_file():
            certificate = read_certificate(path)
        network = load_network(path)
        return network_page(
            network, certificate=certificate, links=asked.links, tour=asked.tour
        )
    if asked.tour is not None:
        read_tour(asked.tour)  # before anything is built
    grid, tol, p = asked.grid, asked.tol, asked.p
    if grid is not None and tol is not None:
        raise typer.BadParameter("Give --grid or --tol, not both.")
    target = load_target(subject, asked.seq_len, asked.d_model, trace=asked.trace)
    method = read_method(asked.method, asked.settings, target.seq_len)
    if grid is None and tol is None:
        grid, tol = (GRID, None) if method.takes_grid else (None, TOLERANCE)
    if grid is not None:
        count = plan(target, grid, p=p, method=method).count()
        refuse_large(count.blocks, count.stored_bytes, grid)
    with redirect_stdout(sys.stderr), progress_bar() as progress:
        built = construct(target, grid=grid, tol=tol, p=p, method=method, progress=progress)
        return explore(built, asked.links, asked.tour)


def of_comparison(subject: str, asked: Asked) -> Page:
    """The page of all methods for a target and a tolerance."""
    from everyformer.cli.comparing import also_compared
    from everyformer.explore.comparison_page import comparison_page

    asked.refuse("--compare, which gives every method its own grid,", "grid", "tour")
    if asked.tol is None:
        raise typer.BadParameter("--compare needs --tol: what the methods are to meet.")
    target = load_target(subject, asked.seq_len, asked.d_model, trace=asked.trace)
    also = also_compared(asked.method, asked.settings, target)
    p = 2 if asked.p is None else asked.p
    with redirect_stdout(sys.stderr), progress_bar() as progress:
        found = compare(target, asked.tol, p=p, also=also, progress=progress)
    return comparison_page(found)


def of_pattern(name: str, asked: Asked) -> Page:
    """The page of a sparse pattern."""
    from everyformer.cli.pattern_checking import report_of
    from everyformer.explore.pattern_page import pattern_page

    asked.refuse("a pattern", "grid", "tol", "p", "method", "d_model", "tour")
    return pattern_page(report_of(name, asked.seq_len, asked.settings))


def of_layer(name: str, asked: Asked) -> Page:
    """The page of an attention layer of the library."""
    from everyformer.checks.report import check
    from everyformer.checks.subject import Subject
    from everyformer.cli.subjects import Variant, layer_of_the_library
    from everyformer.explore.attention_page import attention_page

    asked.refuse("a layer", "grid", "tol", "p", "method", "settings", "tour")
    n = CHECK_SEQ_LEN if asked.seq_len is None else asked.seq_len
    d = CHECK_D_MODEL if asked.d_model is None else asked.d_model
    layer = layer_of_the_library(name, n, d, min(CHECK_HEADS, d), Variant())
    subject = Subject.of(layer, n, d, name)
    return attention_page(subject, check(subject, trials=TRIALS))
