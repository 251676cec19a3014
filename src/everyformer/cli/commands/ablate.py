"""`everyformer ablate`: is a stage of a constructed network needed?"""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.defaults import HALVES, MAX_WORK, REPLACEMENTS
from everyformer.cli.saving import check_report_folder, new_folder

EXAMPLE = "everyformer ablate out/ --stage 'value map'"


def ablate(
    folder: options.BuiltArgument,
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            metavar="NAME",
            help="The stage to leave out; a name that does not exist is answered with "
            "those that do.",
        ),
    ],
    half: Annotated[
        str,
        typer.Option(
            "--half",
            metavar="HALF",
            help="Leave out both halves of its blocks, or the attention or feed-forward "
            "layers alone.",
        ),
    ] = "both",
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="WHAT",
            help="What takes its place: nothing; or, for its attention, a mean, which "
            "hears all tokens alike and keeps values, outputs and feed-forward layers.",
        ),
    ] = "nothing",
    out: Annotated[
        Path | None,
        options.out_folder(
            "Write what is left, with the old claim about it, to a folder that is new or "
            "empty; else nothing is written."
        ),
    ] = None,
    max_work: Annotated[
        float,
        typer.Option(
            "--max-work",
            metavar="SECONDS",
            help="Refuse what would take more seconds on one core, by an estimate.",
        ),
    ] = MAX_WORK,
    as_json: options.JsonOption = False,
) -> None:
    """Leave out or replace a stage, and verify it again.

    Skip connections make a stage that is left out the identity. With --by mean its
    attention does not select any more: all scores become 0. The old claim is put to
    what is left, as `verify` would; where that cannot follow, f and the network are
    enclosed on boxes. REFUTED comes with a proved lower bound on the distance, UNKNOWN
    with what could not be followed, PROVED means that the stage is not needed. Beside it
    a random input on which the two networks differ, measured.
    Exit code 0: PROVED. 1: REFUTED. 3: UNKNOWN. 2: wrong input.
    """
    if half not in HALVES:
        msg = f"--half {half} does not exist. Choose one of {', '.join(HALVES)}."
        raise typer.BadParameter(msg)
    if by not in REPLACEMENTS:
        msg = f"--by {by} does not exist. Choose one of {', '.join(REPLACEMENTS)}."
        raise typer.BadParameter(msg)
    options.check_work(max_work)
    check_report_folder(out)
    from everyformer.cli import tables
    from everyformer.construct.ablation import ablate as leave_out

    with redirect_stdout(sys.stderr):
        found = leave_out(folder, stage, half, by=by, max_work=max_work)
        if out is not None:
            with new_folder(out, frozenset(), overwrite=False) as place:
                found.save(place)
    written = () if out is None else (f"Wrote {out}.",)
    tables.answer(found.to_json(), str(found), *written, as_json=as_json)
    raise typer.Exit(found.verification.verdict.exit_code)
