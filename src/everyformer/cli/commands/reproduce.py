"""`everyformer reproduce`: the experiments of the papers, beside what the papers print."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from everyformer.cli.names import check_experiment, check_packs
from everyformer.cli.options import JsonOption, out_folder
from everyformer.cli.saving import is_full
from everyformer.errors import TrainingError

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLE = "everyformer reproduce urpe-synthetic --size smoke"

SIZES: tuple[Literal["smoke", "small", "reduced", "paper"], ...] = (
    "smoke", "small", "reduced", "paper",
)  # fmt: skip

HEAD = ("cell", "done", "cells", "steps")
"""What every line of a log says of its cell."""


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An experiment that --list names.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Name the experiments.")] = False,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="smoke (seconds), small (minutes on a laptop), reduced (an hour or two "
            "on one GPU) or paper (what the paper ran).",
        ),
    ] = "small",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder of packs that `everyformer data pack` wrote; a text for "
            "urpe-lengths; images (.npz, or the folder of CIFAR-10) for urpe-images.",
        ),
    ] = None,
    out: Annotated[Path, out_folder("Folder of the results.")] = Path(
        "experiments/results"
    ),
    runs: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of logs and checkpoints.")
    ] = Path("out/runs"),
    seeds: Annotated[
        str, typer.Option(metavar="A,B,..", help="A run of every cell for each.")
    ] = "0",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Cells to run, such as 'pi/urpe/*'; may be given again."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of all cells, such as lr=1e-4, or of one task, such as "
            "mnli.lr=2e-4; may be given again.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="M",
            help="Begin no cell later, and end the running one; --resume goes on.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep finished cells, and go on from checkpoints."),
    ] = False,
    join: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Results (.json) that another process or machine of the same kind wrote "
            "with another --out: its finished cells are kept; may be given again.",
        ),
    ] = None,
    export_state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Copy unfinished runs of at most 16 MiB into this new folder at the end, "
            "to go on with them on another machine.",
        ),
    ] = None,
    import_state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Begin with runs that --export-state wrote (with --resume).",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option("--show", help="Run nothing: table and picture of what is there."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment of a paper, and print a table.

    The table has the paper's number, ours, and the verdict. Results are written cell by
    cell, with the settings, the curves, the machine, the commit and the date; where
    seeds decide, the claims of the paper are judged beside. Also runs under `torchrun`
    and `accelerate launch`.
    """
    if size not in SIZES:
        msg = f"--size {size} does not exist. Choose one of {', '.join(SIZES)}."
        raise typer.BadParameter(msg)
    if name is not None:
        check_experiment(name)
    if find_spec("accelerate") is None:
        msg = (
            "`everyformer reproduce` trains with Hugging Face Accelerate, which is not "
            "installed. Install it: pip install 'everyformer[train]'."
        )
        raise TrainingError(msg)
    numbers, changed = _numbers(seeds), _settings(changes or [])
    if import_state is not None and not resume:
        msg = "--import-state goes on with runs: give --resume too."
        raise typer.BadParameter(msg)
    if name is not None and not show:
        check_packs(name, size, data)
    from everyformer.cli import tables
    from everyformer.experiments import moving, registry, report
    from everyformer.experiments import reproduce as runner
    from everyformer.numerics.limits import check_limit

    if listing or name is None:
        tables.show(_experiments(registry.EXPERIMENTS))
        return
    experiment = registry.experiment_by_name(name)
    if minutes is not None:
        check_limit("--minutes", minutes, "minutes", zero=True)
    path = report.results_path(out, experiment, size)
    place = moving.runs_of(runs, experiment, size)
    if export_state is not None:
        moving.refuse_filled(export_state)
    if import_state is not None:
        moving.import_runs(import_state, place)
    if show:
        path = report.shown_path(out, experiment, size, join or ())
        runner.show(experiment, path, join or (), data)
    else:
        with _screen() as watch, _kept():
            runner.reproduce(
                experiment, size, out=out, runs=runs, data=data, seeds=numbers,
                only=only or (), changes=changed, resume=resume,
                others=join or (), watch=watch,
                seconds=None if minutes is None else 60 * minutes,
            )  # fmt: skip
    if not runner.is_main():
        return
    if export_state is not None:
        left = moving.export_runs(report.load_report(path), place, export_state)
        for name, why in left.items():
            typer.echo(f"{name} stays here: {why}", err=True)
        if not left and not any(export_state.iterdir()):
            typer.echo(f"No run is unfinished: {export_state} stays empty.", err=True)
    text = path.with_suffix(".md").read_text()
    wrote = f"Wrote {path}, and beside it this table (.md) and a picture (.png)."
    tables.answer(report.load_report(path), text, wrote, as_json=as_json)


def _numbers(seeds: str) -> list[int]:
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 <= number < 2**63 for number in numbers):
        msg = f"--seeds {seeds} is not a list of whole numbers from 0 to 2^63 - 1"
        raise typer.BadParameter(f"{msg}: give 0,1,2.")
    if len(set(numbers)) < len(numbers):
        msg = f"--seeds {seeds} names a seed twice, and two runs of it would be the same"
        raise typer.BadParameter(f"{msg}: give each once.")
    return numbers


def _settings(changes: list[str]) -> dict[str, Any]:
    """Names and values, the values as in JSON."""
    found: dict[str, Any] = {}
    for change in changes:
        name, _, value = change.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError as error:
            msg = (
                f"--set {change} is not a setting: give NAME=VALUE with a number, true, "
                'false, null or a "word".'
            )
            raise typer.BadParameter(msg) from error
    return found


def _experiments(found: Mapping[str, Any]) -> "Table":
    """Names, and what each is."""
    from everyformer.cli import tables

    shown = tables.titled("Experiments", "name", "what")
    for name, experiment in found.items():
        shown.add_row(name, experiment.about)
    return shown


@contextmanager
def _kept() -> Generator[None, None, None]:
    """A disk that fills up on the way, in words: what is whole stays for --resume."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        msg = (
            f"{error.strerror}: the running cell could not be written to its end. Finished "
            "cells and whole checkpoints are kept. Make room and go on with --resume, or "
            "choose other folders (--out, --runs)."
        )
        raise TrainingError(msg) from error


@contextmanager
def _screen() -> Generator[Any, None, None]:
    """A bar with the time left on a terminal; elsewhere a line for each evaluation."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[seen]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
    task = bar.add_task("prepare", total=None, seen="")
    current, seen = "", dict[str, float]()

    def watch(line: Mapping[str, Any]) -> None:
        nonlocal current
        if line["cell"] != current:
            current = line["cell"]
            seen.clear()
            bar.reset(
                task,
                description=f"{line['done'] + 1}/{line['cells']} {current}",
                total=line["steps"],
            )
        evaluated = "step" in line and "lr" not in line
        seen.update({k: v for k, v in line.items() if k not in (*HEAD, "step", "lr")})
        told = ", ".join(f"{key} {value:.4f}" for key, value in seen.items())
        bar.update(task, completed=line.get("step", 0), seen=told)
        if not console.is_interactive and (evaluated or "step" not in line):
            step = f"{line['step']}/{line['steps']}: " if "step" in line else "begins"
            console.print(f"{line['done'] + 1}/{line['cells']} {current} {step}{told}")

    with bar:
        yield watch
