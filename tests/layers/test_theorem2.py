"""Luo et al. 2022, Theorem 2: relative encodings keep equal tokens equal; URPE does not."""

from typing import Any, Literal

import pytest
import torch
from tests.layers.encoder import HEADS, WIDTH, Encoder, constant_rows, spread

from everyformer.layers import (
    GraphGain,
    Graphormer,
    RelativeAttention,
    Swin,
    ToeplitzGain,
    shortest_paths,
)

ROUNDING = 1e-14
"""Rows equal but for rounding in float64."""

APART = 1e-2
"""Rows that differ."""

PATHS: tuple[Literal["auto", "reference"], ...] = ("auto", "reference")

BLIND = ["none", "t5", "t5-buckets", "alibi", "shaw", "deberta", "xl", "rotary"]

MODELS: list[dict[str, Any]] = [
    {"depth": 1, "norm": False, "seed": 10},
    {"depth": 3, "norm": True, "seed": 11},
    {"depth": 6, "norm": True, "seed": 12},
]


def random_gain(seed: int = 0) -> ToeplitzGain:
    gain = ToeplitzGain(HEADS, 16, dtype=torch.float64)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(gain.table.shape, generator=generator, dtype=torch.float64)
        gain.table.add_(0.3 * noise)
    return gain


def with_gain(model: Encoder, gain: ToeplitzGain) -> Encoder:
    for layer in model.attention:
        assert isinstance(layer, RelativeAttention)
        layer.gain = gain
    return model


@pytest.mark.parametrize("model", MODELS, ids=["shallow", "deep", "deeper"])
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize("name", BLIND)
def test_equal_tokens_stay_equal(name: str, causal: bool, model: dict[str, Any]) -> None:
    encoder = Encoder(lambda: name, causal=causal, **model)
    for implementation in PATHS:
        encoder.use(implementation)
        out = encoder(constant_rows())
        assert spread(out) <= ROUNDING


def test_equal_tokens_stay_equal_in_windows_and_graphs() -> None:
    x = constant_rows(9)
    swin = Encoder(lambda: Swin(HEADS, 3))
    assert spread(swin(x)) <= ROUNDING
    ring = torch.eye(9, dtype=torch.bool).roll(1, 0)
    ring[0, 5] = ring[5, 0] = True
    graph = shortest_paths(ring | ring.T)
    graphormer = Encoder(lambda: Graphormer(HEADS, 9))
    assert spread(graphormer(x, graph)) <= ROUNDING
    gain = GraphGain(HEADS, 9, dtype=torch.float64)
    urpe = Encoder(lambda: Graphormer(HEADS, 9), gain=gain)  # randomised with the rest
    assert spread(urpe(x, graph)) > APART


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize("name", BLIND)
def test_urpe_tells_equal_tokens_apart(name: str, causal: bool) -> None:
    model = with_gain(Encoder(lambda: name, causal=causal), random_gain())
    assert spread(model(constant_rows())) > APART


@pytest.mark.parametrize("name", BLIND)
def test_a_gain_of_ones_does_not(name: str) -> None:
    ones = ToeplitzGain(HEADS, 16, dtype=torch.float64)
    model = with_gain(Encoder(lambda: name), ones)
    assert spread(model(constant_rows())) <= ROUNDING


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_vectors_on_the_values_escape(causal: bool) -> None:
    model = Encoder(lambda: "shaw-values", causal=causal)
    assert spread(model(constant_rows())) > APART


@pytest.mark.parametrize("name", BLIND)
def test_one_special_token_escapes(name: str) -> None:
    x = constant_rows().clone()
    x[:, 0] = torch.arange(WIDTH, dtype=torch.float64) - WIDTH / 2
    both, causal = (Encoder(lambda: name, causal=c)(x)[:, 1:] for c in (False, True))
    assert spread(causal) > 1e-3
    if name == "none":
        assert spread(both) <= ROUNDING
    else:
        assert spread(both) > 1e-3


def test_hand_set_gains_give_positions() -> None:
    """Uniform softmax: A 1 = (i - 1)/n, i/n, and causally 1/i and (i - 1)/2, i from 1."""
    for n in range(1, 65):
        offsets = torch.arange(-63, 64, dtype=torch.float64)
        place = torch.arange(1, n + 1, dtype=torch.float64)
        for causal, gain, wanted in (
            (False, (offsets >= 1).double(), (place - 1) / n),
            (False, (offsets >= 0).double(), place / n),
            (True, (offsets == 0).double(), 1 / place),
            (True, offsets, (place - 1) / 2),
        ):
            layer = RelativeAttention(1, 1, gain=True, max_len=64, causal=causal).double()
            with torch.no_grad():
                layer.in_proj_weight.zero_()
                assert layer.in_proj_bias is not None
                layer.in_proj_bias[2] = 1.0
                layer.out_proj.weight.fill_(1.0)
                assert layer.gain is not None
                layer.gain.table[0] = gain
            sums = layer(torch.zeros(1, n, 1, dtype=torch.float64))[0, :, 0]
            assert (sums - wanted).abs().max() < 1e-12
