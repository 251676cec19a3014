"""Encoders: sizes of the papers, every mixer and encoding, configs as JSON."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers import BERT_BASE, Encoder, EncoderConfig, RelativeAttention
from everyformer.layers.models.encoder_config import MIXERS

SMALL = EncoderConfig(30, 8, dim=16, layers=2, heads=2, ffn=32, filter_length=5, filters=2)
SYNTHETIC = EncoderConfig(1011, 128, layers=3, encoding="none")
"""The synthetic tasks of Luo et al. 2022: |V| = 1000 and 11 special tokens."""


def parameters(config: EncoderConfig) -> int:
    return sum(p.numel() for p in Encoder(config, device="meta").parameters())


@pytest.mark.parametrize(
    ("config", "count", "printed"),
    [
        (BERT_BASE, 109_514_298, "110M"),
        (replace(BERT_BASE, mixers="light"), 102_451_770, "102.5M"),
        (replace(BERT_BASE, mixers="average"), 88_252_986, "88.3M"),
        (replace(BERT_BASE, mixers="bilinear", max_len=384), 89_924_154, "90M"),
    ],
)
def test_table_1_at_full_size(config: EncoderConfig, count: int, printed: str) -> None:
    """BERT_BASE with its masked-LM head and all biases; n = 384 for BProj."""
    assert parameters(config) == count
    digits = len(printed.partition(".")[2].rstrip("M"))
    assert f"{count / 1e6:.{digits}f}M" == printed


@pytest.mark.parametrize(("n", "rounded"), [(128, 88), (256, 89), (512, 91)])
def test_other_lengths_do_not_give_90_million(n: int, rounded: int) -> None:
    config = replace(BERT_BASE, mixers="bilinear", max_len=n)
    assert round(parameters(config) / 1e6) == rounded


def test_bert_as_hugging_face_counts_it() -> None:
    assert parameters(replace(BERT_BASE, head="none", pooler=True)) == 109_482_240


@pytest.mark.parametrize(
    ("encoding", "more"), [("none", 0), ("t5", 3060), ("urpe", 3060), ("t5+urpe", 6120)]
)
def test_the_synthetic_model(encoding: str, more: int) -> None:
    assert parameters(replace(SYNTHETIC, encoding=encoding)) == 22_634_739 + more
    apart = replace(SYNTHETIC, encoding=encoding, share_encoding=False)
    assert parameters(apart) == 22_634_739 + 3 * more


def test_a_hybrid_is_a_list() -> None:
    mixed = replace(BERT_BASE, mixers=("light",) * 2 + ("attention",) * 10)
    whole, light = (
        parameters(replace(BERT_BASE, mixers=m)) for m in ("attention", "light")
    )
    assert 6 * (whole - parameters(mixed)) == whole - light
    kinds = [
        type(b.get_submodule("mixer")).__name__
        for b in Encoder(mixed, device="meta").blocks
    ]
    assert kinds == ["LightConvolution"] * 2 + ["RelativeAttention"] * 10


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 30, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("norm", ["post", "pre", "none"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_and_norm_learns(mixer: str, norm: Any) -> None:
    encoder = Encoder(replace(SMALL, mixers=mixer, norm=norm, segments=2))
    padded = torch.zeros(3, 8, dtype=torch.bool)
    padded[1:, 5:] = True
    out = encoder(ids(3, 8), key_padding_mask=padded)
    assert out.shape == (3, 8, 30)
    out.square().sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())
    other = ids(3, 8).masked_fill(padded, 29)
    again = encoder(other, key_padding_mask=padded)
    assert (out - again)[~padded].abs().max() < 1e-6


def plain_block(encoder: Encoder, x: Tensor, k: int) -> Tensor:
    """A block from its formula."""
    block, norm = encoder.blocks[k], encoder.config.norm
    mixer, forward = (block.get_submodule(name) for name in ("mixer", "feed_forward"))
    first, second = (block.get_submodule(f"norms.{i}") for i in (0, 1))
    if norm == "pre":
        x = x + mixer(first(x))
        return x + forward(second(x))
    x = first(x + mixer(x))
    return second(x + forward(x))


@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_the_formula(norm: Any) -> None:
    encoder = Encoder(replace(SMALL, norm=norm, segments=2, pooler=True)).double()
    tokens, segments = ids(2, 6), ids(2, 6) % 2
    assert encoder.positions is not None
    assert encoder.segments is not None
    x = encoder.tokens.weight[tokens] + encoder.positions[:6]
    x = encoder.embedding_norm(x + encoder.segments.weight[segments])
    for k in range(2):
        x = plain_block(encoder, x, k)
    if norm == "pre":
        x = nn.functional.layer_norm(x, (16,))
    states = encoder.states(tokens, segments=segments)
    assert (states - x).abs().max() < 1e-12
    head = encoder.head
    assert head is not None
    hidden = nn.functional.layer_norm(nn.functional.gelu(head.dense(x)), (16,))
    logits = hidden @ encoder.tokens.weight.T + head.projection.bias
    assert (encoder(tokens, segments=segments) - logits).abs().max() < 1e-12
    assert encoder.pooled(states).shape == (2, 16)


@pytest.mark.parametrize(
    "encoding",
    ["none", "ape", "t5", "t5-buckets", "alibi", "rotary", "shaw", "shaw-values",
     "deberta", "xl", "urpe", "t5+urpe", "ape+urpe", "ape+t5"],
)  # fmt: skip
def test_every_encoding(encoding: str) -> None:
    """Equal tokens stay equal but for absolute positions, values and gains."""
    encoder = Encoder(replace(SMALL, encoding=encoding)).double()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in encoder.parameters():
            p.copy_(torch.randn(p.shape, generator=random, dtype=p.dtype))
    states = encoder.states(torch.full((1, 7), 3))
    apart = float((states - states[:, :1]).abs().max().detach())
    told = any(part in encoding for part in ("ape", "urpe", "shaw-values"))
    assert apart > 1e-3 if told else apart < 1e-12


def test_tables_are_shared_or_not() -> None:
    for share, count in ((True, 1), (False, 2)):
        encoder = Encoder(replace(SMALL, encoding="t5+urpe", share_encoding=share))
        mixers = [block.get_submodule("mixer") for block in encoder.blocks]
        assert len({id(m.get_submodule("encoding")) for m in mixers}) == count
        assert len({id(m.get_submodule("gain")) for m in mixers}) == count


def test_how_weights_start() -> None:
    torch.manual_seed(0)
    encoder = Encoder(replace(SMALL, dim=64, ffn=256, encoding="t5+urpe"))
    for name, p in encoder.named_parameters():
        if "norm" in name or "gain" in name:
            assert (p == (0 if name.endswith("bias") else 1)).all(), name
        elif name.endswith("bias"):
            assert (p == 0).all(), name
        elif p.numel() > 1000:
            assert abs(float(p.std().detach()) / 0.02 - 1) < 0.1, name
    assert encoder.head is not None
    assert encoder.head.projection.weight is encoder.tokens.weight


def test_heads() -> None:
    untied = Encoder(replace(SMALL, head="untied", labels=5))
    assert untied(ids(2, 8)).shape == (2, 8, 5)
    assert Encoder(replace(SMALL, head="none"))(ids(2, 8)).shape == (2, 8, 16)
    assert untied.head is not None
    some = untied.states(ids(2, 8))[:, 3]
    assert (untied.head(some) - untied(ids(2, 8))[:, 3]).abs().max() < 1e-6


def test_mixers_of_ones_own() -> None:
    mine = [RelativeAttention(16, 4, causal=True) for _ in range(2)]
    encoder = Encoder(SMALL, mixers=mine)
    changed = ids(1, 8)
    changed[0, -1] += 1
    gap = (encoder(ids(1, 8)) - encoder(changed)).abs().amax(-1)[0]
    assert gap[:-1].max() < 1e-6 < gap[-1]
    with pytest.raises(InputError, match="1 modules for layers=2"):
        Encoder(SMALL, mixers=mine[:1])


def test_what_a_config_goes_through() -> None:
    config = replace(SMALL, mixers=("light", "attention"), encoding="t5+urpe", dropout=0.1)
    again = EncoderConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    plain = EncoderConfig.from_json(json.loads(json.dumps(SMALL.to_json())))
    assert plain == replace(SMALL, mixers=("attention", "attention"))
    assert hash(plain)


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "dim=16 is not a multiple of heads=3; the next multiple is 18"),
        ({"mixers": "light", "filters": 3}, "not a multiple of filters=3"),
        ({"mixers": ["light"]}, "mixers names 1 mixers for layers=2 blocks"),
        ({"mixers": ["light", "attnetion"]}, "mixer 'attnetion' is unknown; use one of"),
        ({"mixers": "average", "encoding": "t5"}, "acts inside attention, and no block"),
        ({"encoding": "t5+shaw"}, "parts that exclude each other"),
        ({"encoding": "t6"}, "encoding='t6' is not an encoding of an encoder: 't6'"),
        ({"norm": "rms"}, "norm='rms' is unknown; use one of post, pre, none"),
        ({"labels": 3}, "labels=3 needs head='untied'"),
        ({"dim": 16.0}, "dim=16.0 should be of type int"),
        ({"layers": True}, "layers=True should be of type int"),
        ({"mixers": [1, 2]}, "should be a name or a list of names"),
        ({"dropout": 1.0}, "dropout=1.0 is not a probability below 1"),
        ({"vocab_size": 0}, "vocab_size=0 must be 1 or more"),
        ({"activation": "silu"}, "use one of gelu"),
        ({"segments": -1}, "segments=-1 must be 0 or more"),
        ({"depth": 3}, "'depth' is unknown. Its names are: vocab_size"),
    ],
)
def test_configs_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EncoderConfig.from_json(SMALL.to_json() | changes)


def test_all_reasons_at_once_and_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"heads=3.*norm='rms'"):
        EncoderConfig(3, 3, dim=16, heads=3, norm="rms")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'vocab_size' is missing; 'max_len' is missing"):
        EncoderConfig.from_json({})


def test_inputs_that_do_not_fit() -> None:
    encoder = Encoder(SMALL)
    with pytest.raises(InputError, match="9 tokens, but there are positions for max_len=8"):
        encoder(ids(1, 9))
    with pytest.raises(InputError, match="has no segment embedding"):
        encoder(ids(1, 8), segments=ids(1, 8))
    with pytest.raises(InputError, match="has no pooler"):
        encoder.pooled(torch.zeros(1, 8, 16))
    with pytest.raises(InputError, match="max_len=8"):
        Encoder(replace(SMALL, encoding="t5"))(ids(1, 9))


@pytest.mark.compile
def test_a_hybrid_compiles_as_one_graph() -> None:
    torch.compiler.reset()
    config = replace(SMALL, mixers=("light", "attention"), encoding="ape+t5+urpe")
    encoder = Encoder(config).double()
    compiled = torch.compile(encoder, fullgraph=True)
    out, wanted = compiled(ids(2, 8)), encoder(ids(2, 8))
    assert (out - wanted).abs().max() < 1e-12
    given = list(encoder.parameters())
    one, two = (torch.autograd.grad(y.square().sum(), given) for y in (out, wanted))
    for a, b in zip(one, two, strict=True):
        assert (a - b).abs().max() < 1e-9 * max(1.0, float(b.abs().max()))
