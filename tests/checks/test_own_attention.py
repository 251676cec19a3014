"""Networks with somebody's own attention: equal to the certified ones, cell by cell."""

import importlib.util
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import everyformer as ef
from everyformer.checks.own_attention.forms import Forms, NotAffine
from everyformer.checks.own_attention.realise import (
    _examined,  # pyright: ignore[reportPrivateUsage]
    place_layer,
    with_own_attention,
)
from everyformer.checks.own_attention.witness import tokens_heard, what_it_adds
from everyformer.errors import InputError

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_attention.py"


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("my_attention", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mine = _example()


@pytest.fixture(scope="module")
def built() -> ef.Built:
    target = ef.targets.reverse(2, 1)
    return ef.construct(target, grid=4, method=ef.Averaging(positional=True))


@pytest.mark.parametrize("name", ["GainWitness", "NoDenominatorWitness"])
def test_the_module_is_the_certified_network_on_all_cells(
    name: str, built: ef.Built
) -> None:
    """Centres, corners and points beside borders of all 16 cells, in float64."""
    found = with_own_attention(built.network, getattr(mine, name)())
    for offset in (0.0, 2.0**-40, 0.125, 0.2):
        x = np.array(list(product(*[[k / 4 + offset for k in range(4)]] * 2)))[..., None]
        with torch.no_grad():
            y = found.module(torch.tensor(x)).numpy()
        assert np.abs(y - built.network(x)).max() < 1e-12
    assert found.key_error == 0
    lows = [low for low, _ in found.places]
    assert all(a < b for (_, a), b in zip(found.places, lows[1:], strict=False))
    if name == "GainWitness":
        assert found.places == tuple((Fraction(i, 2), Fraction(i, 2)) for i in range(2))
    report = found.report(built.certificate)
    assert report.startswith("PROVED: d_2(reverse, g) <= ")
    assert "g the module in real arithmetic" in report
    assert "assumes: the attention layers compute what torch.export shows" in report
    target = ef.targets.prefix_mean(2, 1)
    other = ef.construct(target, grid=2, method=ef.Averaging(positional=True))
    with pytest.raises(InputError, match="other weights"):
        found.report(other.certificate)
    with pytest.raises(InputError, match="read from a file and not verified"):
        found.report(replace(built.certificate, unchecked=True))


class Copying(mine.GainWitness):
    """One layer for each token: a bias so sharp that all others nearly vanish."""

    sharp = (64.0, 72.0)

    def attentive(self, width: int, seq_len: int, M: torch.Tensor) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for j in range(seq_len):
            (layer,) = super().attentive(width, seq_len, M / seq_len)
            with torch.no_grad():
                layer.bias[:, j] = self.sharp[j]
            layers.append(layer)
        return layers


def test_copying_one_token_after_the_other_has_a_proved_error(built: ef.Built) -> None:
    found = with_own_attention(built.network, Copying())
    assert 0 < found.key_error < Fraction(1, 10**20)
    x = np.random.default_rng(0).random((512, 2, 1))
    with torch.no_grad():
        y = found.module(torch.tensor(x)).numpy()
    assert np.abs(y - built.network(x)).max() < 1e-9


def test_copying_that_is_not_sharp_misses_what_it_should_add() -> None:
    """Biases 1 and 4: the shares of the others are not what a token misses of one."""
    shares = np.array([[np.e, 1.0], [1.0, np.e**4]])
    total = (shares / shares.sum(axis=1, keepdims=True)).sum(axis=0)
    witness = Copying()
    witness.sharp = (1.0, 4.0)
    M = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    layers = [what_it_adds(layer, 2, 2) for layer in witness.attentive(2, 2, M)]
    assert abs(float(tokens_heard(layers, M)) - np.abs(total - 1).sum()) < 1e-12


def test_a_look_up_with_a_slope_tolerates_nothing(built: ef.Built) -> None:
    """One unit more, 10^-3 ReLU(key): off by a share of the key's error, however small."""
    network, last = built.network, built.network.stages[-1]
    held = last.feed_forward
    assert held is not None
    assert _examined(network).tolerated == Fraction(1, 4)
    more = np.zeros_like(held.W_2[..., :1])
    more[:, -1] = 1e-3
    sloped = replace(
        held,
        W_1=np.concatenate([held.W_1, held.W_1[:, :1]], axis=1),
        b_1=np.concatenate([held.b_1, np.full((1, 1), 2.0)], axis=1),
        W_2=np.concatenate([held.W_2, more], axis=2),
    )
    changed = replace(
        network,
        stages=(*network.stages[:-1], replace(last, feed_forward=sloped)),
        architecture=replace(network.architecture, d_ff=sloped.W_1.shape[1]),
    )
    assert _examined(changed).tolerated == 0


def test_what_a_layer_adds_is_what_it_adds() -> None:
    """Random weights without scores: coefficients against runs, n = 3, width 4."""
    torch.manual_seed(0)
    layer = mine.WithGain(4, 3).double()
    with torch.no_grad():
        layer.query.weight.zero_()
        layer.query.bias.zero_()
        layer.gain.normal_()
        layer.bias.normal_()
    found = what_it_adds(layer, 4, 3)
    x = torch.randn(64, 3, 4, dtype=torch.float64)
    linear = torch.tensor(found.linear.astype(np.float64))
    constant = torch.tensor(found.constant.astype(np.float64))
    wanted = x + torch.einsum("iajb,zjb->zia", linear, x) + constant
    assert (layer(x) - wanted).abs().max() < 1e-13
    assert 0 < float(found.linear_off.max()) < 1e-15


def test_weights_that_move_with_the_tokens_are_not_affine() -> None:
    with pytest.raises(NotAffine, match="depend on the tokens"):
        what_it_adds(mine.WithGain(2, 2).double(), 2, 2)


def test_forms_know_zero_times_anything() -> None:
    x = Forms.tokens((2, 1))
    zero = Forms.constant(np.zeros((2, 1)), 2)
    assert (zero * x).is_constant.all()
    with pytest.raises(NotAffine, match="multiplied"):
        _ = x * x
    with pytest.raises(NotAffine, match="not finite"):
        Forms.constant(np.array([np.nan]), 2)


def test_other_networks_are_refused() -> None:
    other = ef.construct(ef.targets.reverse(2, 1), grid=4)
    with pytest.raises(InputError, match="averaging attention with positions"):
        with_own_attention(other.network, mine.GainWitness())


def test_places_are_exact_or_refused() -> None:
    """v in any order; start_i - start_1 as float64 numbers, or not at all."""
    places = tuple((Fraction(v), Fraction(v) + Fraction(1, 100)) for v in (5, -1, 2))
    start = np.array([[0.0, 0.0], [1.25, 1.0], [2.5, 2.0]])
    layer = place_layer(start, places)
    for i, (low, high) in enumerate(places):
        for v in (float(low), float(high)):
            z = np.array([0.0, 0.0, v])
            hidden = np.maximum(layer.W_1[0] @ z + layer.b_1[0], 0)
            assert ((layer.W_2[0] @ hidden + layer.b_2[0])[:2] == start[i] - start[0]).all()
    with pytest.raises(InputError, match="power of two"):
        place_layer(start + np.array([[0.1], [1e9], [0.3]]), places)
