"""`everyformer check-all`: the layers of the library, side by side."""

from everyformer.cli import options
from everyformer.cli.defaults import CHECK_D_MODEL, CHECK_HEADS, CHECK_SEQ_LEN, TRIALS
from everyformer.cli.saving import check_report_folder

EXAMPLE = "everyformer check-all -n 9"


def check_all(
    seq_len: options.SeqLenOption = CHECK_SEQ_LEN,
    d_model: options.DModelOption = CHECK_D_MODEL,
    heads: options.HeadsOption = CHECK_HEADS,
    causal: options.CausalOption = False,
    no_bias: options.NoBiasOption = False,
    special_token: options.SpecialTokenOption = False,
    trials: options.TrialsOption = TRIALS,
    seed: options.SeedOption = 0,
    out: options.ReportFolderOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Judge all attention layers of the library, in a table.

    A line for each layer, alone and with URPE: the verdict of `everyformer check`, and how
    far the outputs of equal tokens are apart.
    """
    options.check_heads(heads, d_model)
    check_report_folder(out)
    from everyformer.cli.checking import Choice, check_layers
    from everyformer.cli.subjects import Variant

    check_layers(
        Choice(seq_len, d_model, heads, trials, seed, out, as_json),
        Variant(causal=causal, bias=not no_bias, special_token=special_token),
    )
