"""`everyformer verify`: check a certificate from the weights and itself alone."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from everyformer.certify.prove import Computing
from everyformer.certify.verify import Verification
from everyformer.certify.verify import verify as check
from everyformer.cli import options, tables
from everyformer.cli.loading import load_target
from everyformer.cli.progress import progress_bar
from everyformer.verdict import Verdict

EXIT_CODES = {Verdict.PROVED: 0, Verdict.REFUTED: 1, Verdict.UNKNOWN: 3}


def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="The folder that `everyformer construct` wrote.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Derive what the certificate says of f again, from file.py:attribute or a "
            "target of the gallery. That file is run; without this option no code is.",
            show_default=False,
        ),
    ] = None,
    seq_len: options.SeqLenOption = None,
    d_model: options.DModelOption = None,
    balls: Annotated[
        bool,
        typer.Option(
            "--balls",
            help="Enclose f in Arb balls on every cell, not only where float64 intervals "
            "cannot decide. Slower, and an independent check.",
        ),
    ] = False,
    scheduler: options.SchedulerOption = None,
    workers: options.WorkersOption = None,
    work: options.WorkOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check a certificate from the weights and itself alone.

    Reads thresholds, ids, windows and values off the weights, encloses f on every cell, and
    recomputes the bound; the numbers in the certificate are not used. Exit code 0: PROVED.
    1: REFUTED. 3: UNKNOWN. 2: no verdict, because a file is missing, damaged or not the one
    that is meant.
    """
    loaded = None if target is None else load_target(target, seq_len, d_model)
    with redirect_stdout(sys.stderr), progress_bar() as progress:
        found = check(
            folder,
            loaded,
            Computing(scheduler, workers, work, progress),
            balls=balls,
        )
    if as_json:
        typer.echo(json.dumps(report(found), indent=2))
    else:
        tables.show(str(found))
    if EXIT_CODES[found.verdict]:
        raise typer.Exit(EXIT_CODES[found.verdict])


def report(found: Verification) -> dict[str, object]:
    """The verification as a JSON object."""
    bounds = {"bound": found.bound, "float64_bound": found.float64_bound}
    return {
        "verdict": str(found.verdict),
        "claim": found.certificate.to_json()["claim"],
        "reasons": list(found.reasons),
        "remarks": list(found.remarks),
        **{
            name: None if bound is None else bound.to_json()
            for name, bound in bounds.items()
        },
        "assumptions": list(found.certificate.assumptions),
    }
