"""`everyformer verify`: check a certificate from the weights and itself alone."""

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.defaults import MAX_MEMORY, MAX_WORK
from everyformer.cli.names import check_target
from everyformer.files.names import CERTIFICATE_FILE, check_there

EXAMPLE = "everyformer verify out/"


def verify(
    folder: options.BuiltArgument,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="Derive what the certificate says of f again, from file.py:attribute or a "
            "target of the gallery. That file is run; without this option no code is.",
        ),
    ] = None,
    seq_len: options.TargetSeqLenOption = None,
    d_model: options.TargetDModelOption = None,
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
    max_work: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Refuse what would take more seconds on one core, by an estimate from the "
            "sizes in the files.",
        ),
    ] = MAX_WORK,
    max_memory: options.MaxMemoryOption = MAX_MEMORY,
    verbose: options.VerboseOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Check a certificate, from the files alone.

    Reads thresholds, ids, windows and values off the weights, encloses f on every cell, and
    recomputes the bound; the numbers in the certificate are not used. What is in quotes is
    the file's own words. Exit code 0: PROVED, also where the first line says CONDITIONAL:
    then f is known by a declaration that nobody proved. 1: REFUTED. 3: UNKNOWN. 2: no
    verdict, because a file is missing, damaged or not the one that is meant, or because it
    would take more work than allowed.
    """
    if target is None and (seq_len is not None or d_model is not None):
        msg = "--seq-len and --d-model choose the size of --target. Give it, or leave them"
        raise typer.BadParameter(f"{msg} out.")
    options.check_work(max_work)
    memory = options.bytes_of(max_memory)
    if target is not None:
        check_target(target, seq_len, d_model)
    check_there(folder / CERTIFICATE_FILE)
    from everyformer.certify.proof import Computing
    from everyformer.certify.verify import verify as check
    from everyformer.cli import tables
    from everyformer.cli.loading import load_target
    from everyformer.cli.progress import progress_bar

    loaded = None if target is None else load_target(target, seq_len, d_model)
    with redirect_stdout(sys.stderr), progress_bar() as progress:
        computing = Computing(scheduler, workers, work, progress)
        found = check(
            folder,
            loaded,
            computing,
            balls=balls,
            max_work=max_work,
            max_memory=memory,
        )
    told = tables.claimed(found.describe(verbose=verbose))
    tables.answer(found.to_json(), told, as_json=as_json)
    raise typer.Exit(found.verdict.exit_code)
