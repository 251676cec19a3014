"""`everyformer bench`: what is fast, measured on this machine."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from everyformer.bench.themes import CHOOSING, RESUMABLE, THEMES, load
from everyformer.cli import options

EXAMPLE = "everyformer bench execution --quick"


def _in_file_names(chosen: str) -> str:
    """What --only chose, so that no choice replaces the results of another."""
    return re.sub(r"[^a-z0-9]+", "-", chosen.lower())


def bench(
    theme: Annotated[
        str, typer.Argument(metavar="THEME", help=f"What to time: {' or '.join(THEMES)}.")
    ],
    out: options.ResultFolderOption = Path("benchmarks/results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A small network and few repeats: seconds.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the rows that a stopped run has kept."),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="NAME",
            help="For models: T5-base, T5-base:512 (at that length alone), T5-base:longest "
            "(the longest that fits, alone) or another; for sparse: star or another "
            "pattern; for long-context: strided or star, beside dense; may be repeated.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            min=0.1,
            metavar="M",
            help="For models and long-context: what has not begun by then is left out; 6 "
            "and 9 by default.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="For long-context: where the pack novels-bytes is; without it a made text "
            "is learnt.",
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check one part of everyformer, then time it.

    Nothing is timed whose results are not right. Medians and ratios come from one run
    on this machine. The result file names the machine, the versions, the commit and the
    date.
    """
    if theme not in THEMES:
        msg = f"{theme!r} is not a theme. Choose {' or '.join(THEMES)}."
        raise typer.BadParameter(msg)
    if resume and theme not in RESUMABLE:
        msg = f"{theme} keeps no rows. --resume is for {' and '.join(RESUMABLE)}."
        raise typer.BadParameter(msg)
    chosen: dict[str, Any] = {"only": only or None, "minutes": minutes, "data": data}
    chosen = {key: value for key, value in chosen.items() if value is not None}
    other = [f"--{key}" for key in chosen if key not in CHOOSING.get(theme, ())]
    if other:
        users = [name for name, keys in CHOOSING.items() if other[0][2:] in keys]
        msg = f"{theme} does not take {' and '.join(other)}, which is for "
        raise typer.BadParameter(f"{msg}{' and '.join(users)}.")
    from everyformer.bench.kept import Kept
    from everyformer.bench.results import write
    from everyformer.cli import tables
    from everyformer.cli.progress import progress_bar

    module = load(theme)
    name = "-".join([theme, *map(_in_file_names, only or ()), *["quick"] * quick])
    with progress_bar() as progress:
        kept = None
        if theme in RESUMABLE:
            chosen["kept"] = kept = Kept(out / f"{name}.rows.jsonl", resume=resume)
        try:
            report = module.run(quick=quick, progress=progress, **chosen)
        except BaseException:
            if kept is not None:
                kept.stop()
            raise
        path = write(out, name, report)
        if kept is not None:
            kept.finish()
    if hasattr(module, "picture"):
        module.picture(report, path.with_suffix(".png"))
    tables.answer(report, module.table(report), f"Wrote {path}.", as_json=as_json)
