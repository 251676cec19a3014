"""`everyformer contexts`: what trained encoders make of a word in different contexts."""

from pathlib import Path
from typing import Annotated

import typer

from everyformer.cli import options

EXAMPLE = "everyformer contexts out/runs/mixers-bert_small/mlm_attention_0"


def contexts(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...",
            help="Folders of pre-training runs that have ended, as `reproduce mixers-bert` "
            "leaves them under --runs.",
            exists=True,
            file_okay=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the packs that the runs read; without it, the excerpts.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--contexts", min=2, metavar="C", help="Texts to put words into.")
    ] = 24,
    words: Annotated[
        int, typer.Option("--words", min=2, metavar="W", help="Frequent words to follow.")
    ] = 8,
    drawn: Annotated[
        Path | None, options.picture("Draw shares and gaps against the layer.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Follow words through the layers of trained encoders.

    Each word is put into many contexts: it takes the middle of every text. "by context"
    is the mean distance of one word's states in two texts, "by word" that of two words
    in one text; a fixed embedding of words has a share of 0. The gap is the least
    distance of any two tokens of the texts (Definition 5.1 of Yun et al. 2020),
    relative to the largest number. All are measured.
    """
    from everyformer.cli import tables
    from everyformer.experiments.contexts import contexts_of, picture, table

    found = [contexts_of(one, data, contexts=count, words=words) for one in folders]
    if drawn is not None:
        picture(found, drawn)
    shown = (table(found), *(() if drawn is None else (f"Wrote {drawn}.",)))
    tables.answer([run.to_json() for run in found], *shown, as_json=as_json)
