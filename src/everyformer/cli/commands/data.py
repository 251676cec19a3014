"""`everyformer data`: the packs of real texts and molecules that experiments read."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyformer.cli.options import JsonOption
from everyformer.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLE = "everyformer data list"

ACTIONS = ("list", "pack", "overlap")


def data(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list, pack or overlap.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The pack; list names them.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="list: a folder of packs, to say which are there.",
            file_okay=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="pack, overlap: the folder of the source files."
        ),
    ] = None,
    target: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="pack: the folder of the pack.")
    ] = Path("packs"),
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="T",
            help="pack: keep so many tokens of Wikipedia, under a name of their own.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(min=1, metavar="W", help="pack, overlap: processes on this machine."),
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """List or make the packs of data of the experiments.

    A pack is one file of token ids, made once on a CPU. An interrupted `pack` goes on where
    it stopped when it is called again.

    `overlap` counts how much of the validation and test texts of a pack of words stands in
    its training text, as runs of 13 words, before you believe a perplexity.
    """
    if action not in ACTIONS:
        msg = f"{action!r} is not an action. Choose list, pack or overlap."
        raise typer.BadParameter(msg)
    if action == "list":
        _list(folder, as_json)
        return
    from everyformer.data.packs.sources import RECIPES, recipe

    if name is None or source is None:
        lacking = "NAME" if name is None else "--from DIR"
        msg = f"`data {action}` needs {lacking}; the packs are {', '.join(RECIPES)}."
        raise typer.BadParameter(msg)
    if action == "overlap":
        _overlap(recipe(name), source, workers, as_json)
        return
    _pack(recipe(name), source, target, tokens, workers, as_json)


def _pack(
    wanted: Any,
    source: Path,
    target: Path,
    tokens: int | None,
    workers: int,
    as_json: bool,
) -> None:
    wanted.name_of(tokens)
    wanted.check_files(source)
    from everyformer.cli.progress import progress_bar
    from everyformer.data.packs.making import make_pack
    from everyformer.data.packs.pack import read_pack

    with progress_bar() as progress, _enough_memory(wanted.name):
        path = make_pack(
            wanted, source, target, tokens=tokens, workers=workers, progress=progress
        )
        pack = read_pack(path)
    size = path.stat().st_size
    if as_json:
        _echo({"path": str(path), "bytes": size, "sha256": pack.sha256, **pack.header})
        return
    counts = ", ".join(f"{key} {value:,}" for key, value in pack.header["counts"].items())
    typer.echo(f"Wrote {path}, {size / 2**20:.1f} MiB.")
    typer.echo(f"sha256 of its header: {pack.sha256}")
    typer.echo(f"Counts: {counts}.")


@contextmanager
def _enough_memory(name: str) -> Generator[None, None, None]:
    try:
        yield
    except MemoryError as error:
        msg = (
            f"There is too little memory to make the pack {name}. Free what other programs "
            "hold, or give fewer --workers, and call this again: what is finished is kept."
        )
        raise InputError(msg) from error


def _overlap(wanted: Any, source: Path, workers: int, as_json: bool) -> None:
    """The share of each held-out text, and the articles that have most of it."""
    if wanted.kind != "words":
        msg = f"{wanted.name} is not made of words of WikiText and Wikipedia. Name one that"
        raise typer.BadParameter(f"{msg} is, such as enwiki-words.")
    wanted.check_files(source)
    from everyformer.cli.progress import progress_bar
    from everyformer.data.packs.making import checked_sources
    from everyformer.data.packs.overlap import overlap

    with progress_bar() as progress:
        checked_sources(wanted, source, progress)
        _, valid, test, *training = (source / one for one in wanted.files)
        found = {
            path: overlap(path, training, workers=workers, progress=progress)
            for path in (valid, test)
        }
    if as_json:
        _echo({path.name: [vars(one) for one in own] for path, own in found.items()})
        return
    for path, own in found.items():
        shared, runs = sum(one.found for one in own), sum(one.runs for one in own)
        typer.echo(
            f"{path.name}: {shared:,} of {runs:,} runs of 13 words stand in the training "
            f"text ({shared / runs:.2%})."
        )
        for one in own[:3]:
            if one.found:
                typer.echo(f"  {one.share:.1%} of {one.title!r}, most in {one.within!r}")


def _list(folder: Path | None, as_json: bool) -> None:
    """What there is, and what is here."""
    from everyformer.data.packs.sources import RECIPES

    lines = [_line(recipe, folder) for recipe in RECIPES.values()]
    from everyformer.cli import tables

    tables.answer(lines, _table(lines), *map(_how, lines), as_json=as_json)


def _line(recipe: Any, folder: Path | None) -> dict[str, Any]:
    from everyformer.data.packs.pack import pack_path

    path = None if folder is None else pack_path(folder, recipe.name)
    here = path is not None and path.is_file()
    return {
        "name": recipe.name,
        "experiments": list(recipe.experiments),
        "about": recipe.about,
        "licence": recipe.licence,
        "mebibytes": recipe.mebibytes,
        "minutes": recipe.minutes,
        "files": list(recipe.files),
        "here": str(path) if here else None,
        "bytes": path.stat().st_size if path is not None and here else None,
    }


def _table(lines: list[dict[str, Any]]) -> "Table":
    from everyformer.cli import tables

    headings = ("name", "needed by", "what", "licence", "MiB", "here")
    shown = tables.titled("Packs", *headings)
    for column in shown.columns:
        column.overflow = "fold"  # words are whole, on two lines if need be
    shown.columns[0].no_wrap = True  # to be copied
    shown.columns[3].min_width = len("CC BY-SA 4.0")
    for line in lines:
        here = "no" if line["here"] is None else f"{line['bytes'] / 2**20:.1f}"
        shown.add_row(
            line["name"], "\n".join(line["experiments"]), line["about"], line["licence"],
            str(line["mebibytes"]), here,
        )  # fmt: skip
    return shown


def _how(line: dict[str, Any]) -> str:
    files = ", ".join(line["files"])
    command = f"everyformer data pack {line['name']} --from DIR --to packs/"
    return f"{command}   (about {line['minutes']} min; DIR holds {files})"


def _echo(found: Any) -> None:
    import json

    typer.echo(json.dumps(found, indent=2))
