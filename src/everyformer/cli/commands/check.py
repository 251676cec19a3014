"""`everyformer check`: is this layer of the library universal?"""

from typing import Annotated

import typer

from everyformer.cli import options
from everyformer.cli.defaults import CHECK_D_MODEL, CHECK_HEADS, CHECK_SEQ_LEN, TRIALS
from everyformer.cli.names import check_layer
from everyformer.cli.saving import check_report_folder

EXAMPLE = "everyformer check urpe"


def check(
    layer: Annotated[
        str,
        typer.Argument(
            metavar="LAYER",
            help="none, ape, t5, t5-buckets, alibi, rotary, shaw, shaw-values, deberta, "
            "xl, swin, graphormer, urpe, or one of them with +urpe.",
        ),
    ],
    seq_len: options.SeqLenOption = CHECK_SEQ_LEN,
    d_model: options.DModelOption = CHECK_D_MODEL,
    heads: options.HeadsOption = CHECK_HEADS,
    causal: options.CausalOption = False,
    no_bias: options.NoBiasOption = False,
    special_token: options.SpecialTokenOption = False,
    trials: options.TrialsOption = TRIALS,
    seed: options.SeedOption = 0,
    out: options.ReportFolderOption = None,
    replay: options.ReplayOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Judge whether an attention layer can be universal.

    The layers are those of the library. PROVED comes with the theorem, REFUTED with a
    counterexample or a target whose distance is bounded below whatever the weights,
    UNKNOWN with what was tried. Exit code 0: PROVED. 1: REFUTED. 3: UNKNOWN. 2: wrong
    input. `check-module` judges a layer of your own, `check-pattern` a sparse pattern,
    `check-all` all layers in a table.
    """
    check_layer(layer)
    options.check_heads(heads, d_model)
    check_report_folder(out)
    from everyformer.cli.checking import Choice, check_one
    from everyformer.cli.subjects import Variant, layer_of_the_library

    choice = Choice(seq_len, d_model, heads, trials, seed, out, as_json)
    variant = Variant(causal=causal, bias=not no_bias, special_token=special_token)
    check_one(
        layer,
        lambda: layer_of_the_library(layer, seq_len, d_model, heads, variant),
        choice,
        replay,
    )
