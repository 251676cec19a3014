"""Modules of torch and Hugging Face, built from configs: what `check` says of each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertLayer, BertModel
from transformers.models.deberta_v2.configuration_deberta_v2 import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Layer
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5Block

from everyformer import patterns
from everyformer.checks.report import check
from everyformer.layers import SparseAttention, add_urpe
from everyformer.verdict import Verdict

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
N, D = 7, 8


def configured(kind: Any, **settings: Any) -> Any:
    """A config; its type does not name all that it takes."""
    return kind(**settings)


def bert_config() -> Any:
    return configured(
        BertConfig,
        hidden_size=D,
        num_attention_heads=2,
        intermediate_size=16,
        num_hidden_layers=2,
        vocab_size=11,
        max_position_embeddings=N,
        attn_implementation="sdpa",
    )


def t5_config() -> Any:
    sizes = {"d_model": D, "d_kv": 4, "num_heads": 2, "d_ff": 16}
    return configured(T5Config, **sizes, attn_implementation="eager")


def gpt2_config() -> Any:
    sizes = {"n_embd": D, "n_head": 2, "n_inner": 16}
    return configured(GPT2Config, **sizes, attn_implementation="sdpa")


class Deberta(nn.Module):
    """A layer of DeBERTa-v2 with its table of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        config = configured(
            DebertaV2Config,
            hidden_size=D,
            num_attention_heads=2,
            intermediate_size=16,
            relative_attention=True,
            position_buckets=4,
            max_relative_positions=16,
            pos_att_type=["c2p", "p2c"],
        )
        self.layer = DebertaV2Layer(config)
        self.table = nn.Embedding(8, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        everyone = torch.ones(x.shape[0], 1, N, N, dtype=torch.bool)
        return self.layer(x, everyone, rel_embeddings=self.table.weight)[0]


# universal in L^p, in the sup norm; equivariant, equal tokens stay equal, causal, g(0) = 0
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Verdict, ...]]] = {
    "torch attention": (
        lambda: nn.MultiheadAttention(D, 2, batch_first=True),
        (REFUTED, REFUTED, PROVED, PROVED, REFUTED, REFUTED),
    ),
    "torch attention, batch second": (
        lambda: nn.MultiheadAttention(D, 2, bias=False),
        (REFUTED, REFUTED, PROVED, PROVED, REFUTED, PROVED),
    ),
    "torch encoder layer": (
        lambda: nn.TransformerEncoderLayer(D, 2, 16, batch_first=True),
        (REFUTED, REFUTED, PROVED, PROVED, REFUTED, REFUTED),
    ),
    "BERT layer": (
        lambda: BertLayer(bert_config()),
        (REFUTED, REFUTED, PROVED, PROVED, REFUTED, REFUTED),
    ),
    "BERT model, with its positions": (
        lambda: BertModel(bert_config(), add_pooling_layer=False),
        (UNKNOWN, UNKNOWN, REFUTED, REFUTED, REFUTED, REFUTED),
    ),
    "T5 block": (
        lambda: T5Block(t5_config(), has_relative_attention_bias=True),
        (UNKNOWN, REFUTED, REFUTED, PROVED, REFUTED, PROVED),
    ),
    "GPT-2 block": (
        lambda: GPT2Block(gpt2_config()),
        (REFUTED, REFUTED, REFUTED, PROVED, PROVED, REFUTED),
    ),
    "DeBERTa-v2 layer": (
        Deberta,
        (UNKNOWN, REFUTED, REFUTED, PROVED, REFUTED, REFUTED),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name: str) -> None:
    make, wanted = CASES[name]
    torch.manual_seed(0)
    report = check(make(), N, D, trials=3)
    codes = ("EF001", "EF003", "EF006", "EF007")
    found = (report.lp.verdict, report.sup.verdict, *(report[c].verdict for c in codes))
    assert found == wanted, str(report)


def test_urpe_is_a_way_out() -> None:
    """The encoder layer of torch, with a gain after its softmax: equal tokens part."""
    layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)
    add_urpe(layer, max_len=N)
    report = check(layer, N, D, trials=3)
    assert report["EF003"].verdict is REFUTED
    assert report["EF002"].verdict is not PROVED
    assert report.verdict is UNKNOWN


class InBlocks(nn.Module):
    """PyTorch's attention with a mask of the user's: blocks of three tokens."""

    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block = torch.arange(N) // 3
        apart = block[:, None] != block[None]
        if self.shift:
            apart = apart & (block[:, None] != block[None].roll(self.shift))
        return x + self.attention(x, x, x, attn_mask=apart, need_weights=False)[0]


def test_a_mask_that_cuts_the_sequence() -> None:
    """The pair that never meets refutes L^p; a mask that joins the blocks does not."""
    report = check(InBlocks(), N, D)
    assert report.lp.verdict is REFUTED
    assert report.lp.reason == "token 4 never hears token 1 (1-based), whatever the depth"
    assert report.lp.target == "f(X)_4 = x_1"
    assert report.lp.lower_bound == 12**-0.5
    assert report.sup.lower_bound == 0.5
    assert report["EF006"].verdict is REFUTED
    joined = check(InBlocks(shift=1), N, D)
    assert joined["EF009"].verdict is REFUTED
    assert joined.lp.verdict is UNKNOWN


def test_a_layer_is_refuted_as_its_pattern_is() -> None:
    pattern = patterns.fixed(10, 4)  # whose tokens 9 and 10 nobody before them hears
    layer = SparseAttention(D, 2, pattern, configuration="union")
    assert check(pattern).lp.verdict is REFUTED
    assert check(layer, 10, D).lp.verdict is REFUTED
    whole = SparseAttention(D, 2, patterns.fixed(12, 4), configuration="union")
    assert check(whole, 12, D).lp.verdict is UNKNOWN
