"""`everyformer check-module`: is a layer of your own universal?"""

from typing import TYPE_CHECKING, Annotated

import typer

from everyformer.cli import options
from everyformer.cli.defaults import CHECK_D_MODEL, CHECK_HEADS, CHECK_SEQ_LEN, TRIALS
from everyformer.cli.names import check_module_name
from everyformer.cli.saving import check_report_folder

if TYPE_CHECKING:
    from torch import nn

EXAMPLE = "everyformer check-module my_layers.py:MyAttention -n 16 -d 8"


def check_module(
    module: Annotated[
        str,
        typer.Argument(
            metavar="FILE.PY:NAME",
            help="A torch.nn.Module of your own that maps (batch, n, d) or (n, batch, d) "
            "to the same shape; its class, or a function that makes it, which get the "
            "sizes by names such as seq_len, d_model and num_heads.",
        ),
    ],
    seq_len: options.SeqLenOption = CHECK_SEQ_LEN,
    d_model: options.DModelOption = CHECK_D_MODEL,
    heads: options.HeadsOption = CHECK_HEADS,
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            metavar="LAYOUT",
            help="Where the module has its tokens: batch_first, (batch, n, d), or "
            "tokens_first, (n, batch, d); auto finds out, by a batch of two.",
        ),
    ] = "auto",
    feed_forward: Annotated[
        bool,
        typer.Option(
            "--feed-forward/--no-feed-forward",
            help="Whether stacks have feed-forward layers, too. Without them affine layers "
            "are REFUTED (EF011), and in the sup norm also softmax attention that keeps "
            "equal tokens equal (EF012).",
        ),
    ] = True,
    embedding: Annotated[
        str | None,
        typer.Option(
            "--embedding",
            metavar="PART",
            help="For a model of token ids: its part that embeds them, such as "
            "transformer.wte. The sequence takes the place of what it gives.",
        ),
    ] = None,
    trials: options.TrialsOption = TRIALS,
    seed: options.SeedOption = 0,
    out: options.ReportFolderOption = None,
    replay: options.ReplayOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Judge an attention layer of your own.

    Says whether it can be universal. The module is followed operation by operation, for
    all weights; what that does not decide is measured, and never called proved. PROVED
    comes with the theorem, REFUTED with a counterexample or a target whose distance is
    bounded below, UNKNOWN with what was tried. Exit code 0: PROVED. 1: REFUTED. 3:
    UNKNOWN. 2: wrong input. The file is run.
    """
    check_module_name(module)
    check_report_folder(out)
    from everyformer.checks.calling import InPlaceOfEmbedding
    from everyformer.cli.checking import Choice, check_one
    from everyformer.cli.subjects import module_of_the_users

    def made() -> "nn.Module":
        found = module_of_the_users(module, seq_len, d_model, heads)
        return found if embedding is None else InPlaceOfEmbedding(found, embedding)

    choice = Choice(seq_len, d_model, heads, trials, seed, out, as_json)
    check_one(
        module,
        made,
        choice,
        replay,
        layout,
        feed_forward=feed_forward,
    )
