"""`everyformer construct`: build a network and write it to a folder."""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.names import check_method, check_target
from everyformer.cli.saving import (
    COST_FILE,
    OWN_FILES,
    PLOT_FILE,
    check_new_folder,
    new_folder,
)
from everyformer.files.names import NETWORK_FILE

EXAMPLE = "everyformer construct sort --grid 16 -o out/"


def construct(
    target: options.TargetArgument,
    out: options.NewFolderOption,
    tol: options.ToleranceOption = None,
    grid: options.GridOption = None,
    p: options.ExponentOption = None,
    method: options.MethodOption = None,
    settings: options.WithOption = None,
    trace: options.TraceOption = True,
    seq_len: options.TargetSeqLenOption = None,
    d_model: options.TargetDModelOption = None,
    max_memory: options.MaxMemoryOption = 4.0,
    certificate: Annotated[
        bool,
        typer.Option(
            "--certificate/--no-certificate",
            help="With --grid: whether to prove a bound. With --tol there always is one.",
        ),
    ] = True,
    scheduler: options.SchedulerOption = None,
    workers: options.WorkersOption = None,
    work: options.WorkOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder of an earlier run.")
    ] = False,
    verbose: options.VerboseOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Build the network of a target into a folder.

    Give either --tol or --grid. The folder holds network.safetensors (the weights),
    certificate.json (the bound on the distance, for `everyformer verify`), cost.json
    (sizes) and plot.png (target and network along a line); it appears complete or not at
    all.
    """
    if (tol is None) == (grid is None):
        msg = "Give either --tol or --grid: the distance allowed, or the cells per axis."
        raise typer.BadParameter(msg)
    memory = options.bytes_of(max_memory)
    check_new_folder(out, OWN_FILES, overwrite=overwrite)
    check_target(target, seq_len, d_model)
    check_method(method)
    from everyformer.certify.proof import Computing
    from everyformer.cli import tables
    from everyformer.cli.cost import certificate_text, cost_report
    from everyformer.cli.loading import load_target
    from everyformer.cli.method_settings import read_method
    from everyformer.cli.progress import progress_bar
    from everyformer.construct.method import plan_table
    from everyformer.construct.pipeline import construct as build
    from everyformer.construct.problem import trial_table

    loaded = load_target(target, seq_len, d_model, trace=trace)
    chosen = read_method(method, settings, loaded.seq_len)
    with (
        redirect_stdout(sys.stderr),  # results alone go to stdout
        progress_bar() as progress,
        new_folder(out, OWN_FILES, overwrite=overwrite) as folder,
    ):
        computing = Computing(scheduler, workers, work, progress)
        built = build(
            loaded,
            grid=grid,
            tol=tol,
            p=p,
            method=chosen,
            max_memory=memory,
            computing=computing,
            progress=progress,
        )
        built.network.save(folder / NETWORK_FILE)
        proved = built.proved
        if certificate and proved is None:
            proved = built.certify(computing=computing)
        if proved is not None:
            proved.save(folder)
            built = replace(built, proved=proved)
        from everyformer.cli import pictures  # loads matplotlib, which no refusal needs

        report = cost_report(built, proved)
        (folder / COST_FILE).write_text(json.dumps(report, indent=2) + "\n")
        figure = pictures.along_a_line(loaded, built.network, progress)
        with (folder / PLOT_FILE).open("wb") as file:
            pictures.save(figure, file)
        written = sorted(path.name for path in folder.iterdir())
        cheaper = () if proved is None else built.cheaper
    if as_json:
        told = {"folder": str(out), "cheaper": [one.to_json() for one in cheaper]}
        typer.echo(json.dumps(report | told, indent=2))
        return
    if built.tried:
        tables.show("Tried before:", *trial_table(built.tried), "")
    tables.show(
        plan_table(built.plan, loaded.name), certificate_text(proved, verbose=verbose), ""
    )
    if built.plan.note is not None:
        tables.show(built.plan.note, "")
    if cheaper:
        tables.show(built.hint, "")
    tables.show(f"Wrote {', '.join(written)} to {out}.")
