"""T5 and DeBERTa-v2 of the library transformers, with copied weights."""

import warnings
from importlib import import_module
from typing import Any

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens

from everyformer.layers import T5, Deberta, LogBuckets, RelativeAttention, T5Buckets

transformers: Any = pytest.importorskip("transformers")


def modelling(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeBERTa-v2 uses torch.jit, which is deprecated
        return import_module(f"transformers.models.{name}.modeling_{name}")


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "distance"), [(32, 128), (64, 128), (16, 64), (8, 20), (12, 100)]
)
def test_t5_buckets(buckets: int, distance: int, bidirectional: bool) -> None:
    offsets = torch.arange(-700, 701)
    theirs = modelling("t5").T5Attention._relative_position_bucket(
        -offsets, bidirectional, buckets, distance
    )
    assert torch.equal(T5Buckets(buckets, distance, bidirectional)(offsets), theirs)


@pytest.mark.parametrize(("buckets", "distance"), [(256, 512), (32, 128), (8, 30)])
def test_deberta_buckets(buckets: int, distance: int) -> None:
    offsets = torch.arange(1 - distance, distance)
    theirs = modelling("deberta_v2").make_log_bucket_position(offsets, buckets, distance)
    ours = LogBuckets(buckets, distance)(offsets) - (buckets - 1)
    assert torch.equal(ours, theirs.long())


@pytest.mark.parametrize("implementation", ["auto", "reference"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 37])
def test_t5_attention(n: int, causal: bool, implementation: Any) -> None:
    config = transformers.T5Config(
        d_model=16, d_kv=8, num_heads=2, is_decoder=causal, attn_implementation="eager",
        relative_attention_num_buckets=12, relative_attention_max_distance=24,
    )  # fmt: skip
    theirs = modelling("t5").T5Attention(
        config, has_relative_attention_bias=True, layer_idx=0
    )
    theirs = theirs.double().eval()
    randomise(theirs, size=0.3)
    encoding = T5(2, buckets=T5Buckets(12, 24, bidirectional=not causal))
    layer = RelativeAttention(
        16, 2, encoding=encoding, bias=False, scale=1.0, causal=causal,
        implementation=implementation,
    ).double()  # fmt: skip
    with torch.no_grad():
        layer.in_proj_weight.copy_(
            torch.cat([theirs.q.weight, theirs.k.weight, theirs.v.weight])
        )
        layer.out_proj.weight.copy_(theirs.o.weight)
        encoding.table.copy_(theirs.relative_attention_bias.weight.T)
    x, padded = tokens(2, n, 16), torch.zeros(2, n, dtype=torch.bool)
    padded[1, n // 2 + 1 :] = True
    hidden = padded[:, None, None, :].expand(2, 1, n, n)
    if causal:
        hidden = hidden | torch.ones(n, n, dtype=torch.bool).triu(1)
    mask = torch.zeros(2, 1, n, n, dtype=torch.float64)
    mask = mask.masked_fill(hidden, torch.finfo(torch.float64).min)
    expected = theirs(x, mask=mask)[0]
    assert (layer(x, key_padding_mask=padded) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("share", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("buckets", [-1, 8])
@pytest.mark.parametrize("n", [1, 11, 24])
def test_deberta_attention(n: int, buckets: int, share: bool) -> None:
    width, heads, longest = 24, 2, 24  # sqrt(3 * 12) = 6, exactly
    config = transformers.DebertaV2Config(
        hidden_size=width, num_attention_heads=heads, relative_attention=True,
        pos_att_type=["c2p", "p2c"], position_buckets=buckets, share_att_key=share,
        max_relative_positions=longest,
    )  # fmt: skip
    theirs = modelling("deberta_v2").DisentangledSelfAttention(config).double().eval()
    randomise(theirs, size=0.3)
    span = buckets if buckets > 0 else longest
    embeddings = tokens(2 * span, width, seed=4)
    encoding = Deberta(
        heads, 12, longest, buckets=LogBuckets(buckets, longest) if buckets > 0 else None
    )
    layer = RelativeAttention(width, heads, encoding=encoding).double()
    key = theirs.key_proj if share else theirs.pos_key_proj
    query = theirs.query_proj if share else theirs.pos_query_proj
    projections = (theirs.query_proj, theirs.key_proj, theirs.value_proj)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        assert layer.in_proj_bias is not None
        layer.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        layer.out_proj.weight.copy_(torch.eye(width))
        for own, projection in ((encoding.key_table, key), (encoding.query_table, query)):
            rows = projection(embeddings)[1:]  # offset -span never occurs
            own.copy_(rows.unflatten(-1, (heads, 12)).transpose(0, 1))
    x = tokens(2, n, width)
    padded = some_padding(2, n) if n > 1 else torch.zeros(2, n, dtype=torch.bool)
    seen = (~padded)[:, None, None, :].expand(2, 1, n, n)
    expected = theirs(x, seen, rel_embeddings=embeddings)[0]
    assert (layer(x, key_padding_mask=padded) - expected).abs().max() < 1e-12
