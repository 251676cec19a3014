"""`everyformer inspect`: the proof at one input, step by step, with its numbers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everyformer.cli import options
from everyformer.cli.names import check_network, check_target
from everyformer.cli.saving import IDS_FILE, check_parent, new_file, resolved
from everyformer.files.names import NETWORK_FILE

if TYPE_CHECKING:
    from everyformer.model.insides import Inside
    from everyformer.model.network import Network

EXAMPLE = "everyformer inspect out/ --x 0.1,0.5,0.9"

SHIFTS = ("selective shifts", "chain shifts")
"""The stage that is drawn: of a dense network, and of a sparse one."""


def inspect(
    network: options.NetworkArgument,
    numbers: Annotated[
        str | None,
        typer.Option(
            "--x",
            metavar="NUMBERS",
            help="The tokens, such as 0.1,0.5,0.9; with more than one coordinate, token by "
            "token. [default: tokens spread over the domain]",
        ),
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            exists=True,
            dir_okay=False,
            metavar="X.NPY",
            help="Instead of --x: an array of shape (..., n, d), tokens as rows.",
        ),
    ] = None,
    sequence: Annotated[
        int, typer.Option(metavar="NUMBER", help="Which sequence of the file, from 0.")
    ] = 0,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="f, to compare with: file.py:attribute or a target of the gallery. "
            "[default: the expression in the certificate beside the network]",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        options.picture(
            "Where to draw the ids against the number of the shift [default: ids.png "
            "beside the network, with --json nowhere]."
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Tell the proof at one input, with its numbers.

    Shows every step of the construction, what it is for and what it does to these
    tokens; the tokens after each step; f(x) against g(x); and a picture of the ids,
    where there are selective shifts. For a compiled network it shows the program: what
    each register holds, which line of your file it computes, between which numbers,
    with the error that the verifier finds, and its value beside the ideal one.
    """
    folder = network if network.is_dir() else network.parent
    drawing = folder / IDS_FILE if picture is None else picture
    if picture is not None or not as_json:
        check_parent(resolved(drawing), str(drawing))
    if target is not None:
        check_target(target)
    check_network(network)
    from everyformer.cli import pictures, tables
    from everyformer.cli.inspecting import (
        is_inside,
        meant,
        one_sequence,
        outside,
        to_json,
    )
    from everyformer.cli.loading import load_network
    from everyformer.cli.progress import progress_bar
    from everyformer.narration.proof import narrate

    loaded = load_network(network)
    x = one_sequence(loaded, numbers, input_file, sequence)
    weights = folder / NETWORK_FILE if network.is_dir() else network
    f, certificate, known = meant(weights, target, loaded)
    if f is not None and not is_inside(loaded, x):
        f, known = outside(certificate)
    with progress_bar() as progress:
        traced = loaded.trace(x, progress)
        told = narrate(loaded, x, traced, f)
        names = [stage.name for stage in loaded.stages if stage.kind in SHIFTS]
        drawn = loaded.construction is not None and names
        shifts = loaded.trace_blocks(x, names[0]) if drawn else ()
    draws = bool(shifts) and (picture is not None or not as_json)
    if draws:
        with new_file(drawing) as file:
            pictures.save(pictures.moving_ids(shifts, loaded), file, drawing)
    if as_json:
        insides, _ = _insides(loaded, traced.insides)
        found = to_json(loaded, traced, told, insides, certificate)
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    tables.show(*_heading(loaded), "")
    if loaded.program is not None:
        tables.show(*_program(loaded, traced.insides), "")
    for number, chapter in enumerate(told.chapters, start=1):
        tables.show(*chapter.text(number), "")
    tables.show(tables.token_rows(told.rows), "", tables.f_and_g(told), known)
    if certificate is not None and certificate.eps is not None and told.f is not None:
        tables.show(_bound_in_words(certificate.claim("f"), whole=certificate.p is None))
    tables.show("", f"Drew the ids in {drawing}." if draws else _why_no_shifts(loaded))


def _heading(network: "Network") -> list[str]:
    """What the network is, and what its letters mean."""
    from everyformer.narration.proof import TELLERS
    from everyformer.notebook import short

    spec, made = network.architecture, network.construction
    sizes = f"n = {spec.seq_len}, d = {spec.d_model}"
    if made is not None:
        paper = "" if made.paper == "everyformer" else f" of {short(made.paper)}"
        by = f"{short(made.theorem)}{paper}"
        by = TELLERS[made.theorem].title if made.theorem in TELLERS else by
        cells = "" if made.theorem == "Memory" else f", K = {made.grid} cells per axis"
        head = f"{short(made.target)}: {by}, {sizes}{cells}"
    elif network.program is not None:
        head = f"{short(network.program.target)}: a compiled program, {sizes}"
    else:
        head = f"A network, {sizes}"
    return [head, f"{spec.class_name}: {spec.class_in_words}."]


def _bound_in_words(claim: str, *, whole: bool) -> str:
    kind = (
        "at every point" if whole else "a mean over the domain: single points may be worse"
    )
    return f"The certificate, unchecked here, claims {claim} ({kind})."


def _program(network: "Network", found: "Sequence[Inside]") -> list[str]:
    """The listing, and every step beside its ideal value."""
    from everyformer.model.insides import table_of

    assert network.program is not None, "only compiled networks have one"  # noqa: S101
    listing = list(network.program.listing)
    found, note = _insides(network, found)
    return [*listing, "", table_of(found), note] if found else [*listing, note]


def _insides(
    network: "Network", found: "Sequence[Inside]"
) -> "tuple[Sequence[Inside], str]":
    """Every step of a program, with the errors that are found now, and whose they are."""
    from everyformer.explore.network_data import proved_errors
    from everyformer.model.insides import with_errors

    said = network.program
    if said is None or not found:
        return found, "The file does not say which registers to show."
    errors, problem = proved_errors(network, said, [one.step for one in found])
    return with_errors(found, errors), problem or (
        "Intervals, e (the distance from the ideal value in real arithmetic, at most) and "
        "r (what float64 adds): found by the verifier just now. Values are those of the "
        "token that is farthest off."
    )


def _why_no_shifts(network: "Network") -> str:
    if network.registers is not None:
        return "A network with registers has no selective shifts, so no ids are drawn."
    if network.architecture.seq_len == 1:
        return "A network for a single token has no selective shifts, so no ids are drawn."
    return "This network was not constructed: it has no ids to draw."
