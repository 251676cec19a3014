"""Constructed networks whose sum a mixer takes: the same function, and certified."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import everyformer as ef
from everyformer.construct.certificates import certify
from everyformer.construct.pipeline import Built
from everyformer.errors import GridError, InputError
from everyformer.files.description import StageKind
from everyformer.layers import (
    AverageAttention,
    BilinearProjection,
    Residual,
    SeparableConvolution,
    without_attention,
)
from everyformer.layers.short_filters import ShortFilters
from everyformer.layers.with_attention import with_attention
from everyformer.model.mixing import MixerName
from everyformer.model.stacks import AttentionStack
from everyformer.model.torch_module import TransformerModule
from everyformer.numerics.rationals import exact_array
from everyformer.verdict import Verdict

MIXERS: dict[MixerName, tuple[type[nn.Module], StageKind]] = {
    "average": (AverageAttention, "average attention"),
    "bilinear": (BilinearProjection, "bi-linear projection"),
    "separable": (SeparableConvolution, "separable convolution"),
}
SORT = ef.targets.sort(seq_len=2)


def built(mixer: MixerName, **settings: bool | str) -> Built:
    return ef.construct(SORT, grid=4, method=ef.Averaging(mixer=mixer, **settings))  # type: ignore[arg-type]


def mixers_of(module: TransformerModule) -> list[nn.Module]:
    return [block.layer for block in module.blocks if isinstance(block, Residual)]


def positions_matrix(mixer: nn.Module, n: int, c: int) -> np.ndarray:
    """P with mixed(x)_ic = sum_j P_ij x_jc, in rationals, from the docstrings."""
    P = np.zeros((n, n), dtype=object)
    for i in range(n):
        for j in range(n):
            if isinstance(mixer, AverageAttention):
                P[i, j] = Fraction(1, n)
            elif isinstance(mixer, BilinearProjection):
                P[i, j] = Fraction(mixer.position_weight[i, j].item())
            else:
                filters = mixer.get_parameter("filters")
                k = j - i + (filters.shape[1] - 1) // 2
                inside = 0 <= k < filters.shape[1]
                P[i, j] = Fraction(filters[c, k].item()) if inside else Fraction(0)
    return P


def network_with_heads(n: int, w: int, heads: AttentionStack) -> ef.Network:
    from everyformer.model.stacks import Stage

    spec = ef.ArchitectureSpec(n, w, heads.W_Q.shape[1], 1, 1, "softmax", "relu", False)
    return ef.Network(spec, (Stage("sum", "here", heads),))


@given(
    st.sampled_from(list(MIXERS)),
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=30)
def test_mixers_are_averaging_heads_in_rationals(
    mixer: MixerName, n: int, w: int, h: int, random: object
) -> None:
    """W_O P x = W_O W_V mean(x) as matrices of Fractions, for any heads with scores 0."""
    seed = random.randrange(2**32)  # type: ignore[attr-defined]
    rng = np.random.default_rng(seed)
    W_V = rng.integers(-3, 4, (1, h, 1, w)) / 4
    W_O = n * rng.integers(-3, 4, (1, h, w, 1)) / 2
    nothing = np.zeros((1, h, 1, w))
    heads = AttentionStack(nothing, np.ones((1, h, 1)), nothing, W_V, W_O)
    module = without_attention(network_with_heads(n, w, heads), mixer)
    [layer] = mixers_of(module)
    assert type(layer) is MIXERS[mixer][0]
    weight = exact_array(layer.get_parameter("out_proj.weight").detach().numpy())
    M = sum(exact_array(W_O[0, k]) @ exact_array(W_V[0, k]) for k in range(h))
    for c in range(w):
        P = positions_matrix(layer, n, c)
        mean = np.full((n, n), Fraction(1, n))
        for a in range(w):
            assert (P * weight[a, c] == mean * M[a, c]).all()  # type: ignore[index]


@pytest.mark.parametrize("mixer", list(MIXERS))
@pytest.mark.parametrize("variant", ["wide", "narrow", "two-step"])
def test_a_constructed_network_runs_without_attention(
    mixer: MixerName, variant: str, tmp_path: Path
) -> None:
    made = built(mixer, variant=variant)
    made.save(tmp_path)
    assert ef.verify(tmp_path, SORT).verdict is Verdict.PROVED
    read = ef.load(tmp_path / "network.safetensors")
    module = without_attention(read)
    assert [type(layer) for layer in mixers_of(module)] == [MIXERS[mixer][0]]
    assert not any("W_Q" in name for name, _ in module.named_parameters())
    x = np.random.default_rng(0).random((64, 2, 1))
    x[:4] = [[[0.0], [0.0]], [[0.0], [1.0]], [[1.0], [0.0]], [[0.25], [0.75]]]
    with torch.no_grad():
        y = module(torch.tensor(x)).numpy()
    np.testing.assert_allclose(y, read(x, executor="reference"), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixer", list(MIXERS))
def test_what_the_module_holds_is_certified(mixer: MixerName) -> None:
    """Read back from the module's parameters, with the bound of the network."""
    made = built(mixer)
    module = without_attention(made.network)
    again = certify(with_attention(module, made.network), SORT, 4, Fraction(2))
    assert again.verdict is Verdict.PROVED
    assert again.eps == made.certificate.eps
    assert set(again.claims) == set(made.certificate.claims) == {"real", "float64"}


def add_one(module: nn.Module, given: object, out: torch.Tensor) -> torch.Tensor:
    return out + 1


def changed(module: TransformerModule, attack: str) -> None:
    [layer] = mixers_of(module)
    with torch.no_grad():
        if attack == "W_O":
            layer.get_parameter("out_proj.weight").mul_(1.5)
        elif attack == "look-up":
            module.blocks[-1].get_parameter("W_2").mul_(2)
        elif attack == "positions":
            name = "filters" if isinstance(layer, SeparableConvolution) else ""
            layer.get_parameter(name or "position_weight")[1, 1] += 2**-40
        elif attack == "hook":
            layer.register_forward_hook(add_one)
        else:
            layer.forward = lambda x: x  # type: ignore[method-assign]


@pytest.mark.parametrize("mixer", ["bilinear", "separable"])
@pytest.mark.parametrize("attack", ["W_O", "look-up", "positions", "hook", "method"])
def test_a_module_that_was_changed_is_not_proved(mixer: MixerName, attack: str) -> None:
    made = built(mixer)
    module = without_attention(made.network)
    changed(module, attack)
    if attack in ("positions", "hook", "method"):
        with pytest.raises(InputError, match=r"multiple of the sum|not any more"):
            with_attention(module, made.network)
        return
    network = with_attention(module, made.network)
    found = certify(network, SORT, 4, Fraction(2))
    assert found.verdict is not Verdict.PROVED or found.eps > 2 * made.certificate.eps  # type: ignore[operator]


def test_short_filters_are_not_the_sum() -> None:
    """K = 2n - 2 misses the first token at the last one: the bound 2n - 1 is sharp."""
    made = built("separable")
    module = without_attention(made.network)
    [layer] = mixers_of(module)
    assert isinstance(layer, SeparableConvolution)
    layer.filters = nn.Parameter(torch.ones(layer.dim, 2, dtype=torch.float64))
    with pytest.raises(InputError, match="2n - 1 equal numbers"):
        with_attention(module, made.network)
    x = torch.tensor([[[0.9], [0.1]]], dtype=torch.float64)
    wrong = module(x).detach().numpy()
    assert np.abs(wrong - made.network(x.numpy(), executor="reference")).max() > 0.1


@pytest.mark.parametrize(("n", "K"), [(2, 3), (5, 3), (5, 4), (5, 5), (7, 5), (4, 6)])
def test_stacked_short_filters_take_the_sum(n: int, K: int) -> None:
    """Exactly, in integers, for every token; with one layer less they do not."""
    reach = (K - 1) // 2
    rng = np.random.default_rng(n + K)
    W = torch.tensor(rng.integers(-3, 4, (3, 3)), dtype=torch.float64)
    W[:, 1] = 0  # a register that is not read has no carriers
    stack = ShortFilters(W, n, K)
    assert len(stack.layers) == -(-(n - 1) // reach) + 1
    assert all(layer.layer.filters.shape[1] == K for layer in stack.layers)  # type: ignore[union-attr]
    x = torch.tensor(rng.integers(-9, 10, (4, n, 3)), dtype=torch.float64)
    wanted = x + x.sum(-2, keepdim=True) @ W.T
    with torch.no_grad():
        assert torch.equal(stack(x), wanted)
        stack.layers = stack.layers[:-1]
        assert not torch.equal(stack(x), wanted)


REVERSE = ef.targets.reverse(seq_len=3)


def stacked() -> tuple[Built, TransformerModule]:
    made = ef.construct(REVERSE, grid=2, method=ef.Averaging(mixer="separable"))
    return made, without_attention(made.network, filter_length=3)


def test_a_network_with_short_filters_is_certified() -> None:
    made, module = stacked()
    [stack] = [block for block in module.blocks if isinstance(block, ShortFilters)]
    assert len(stack.layers) == 3
    assert not mixers_of(module)
    x = np.random.default_rng(0).random((64, 3, 1))
    with torch.no_grad():
        y = module(torch.tensor(x)).numpy()
    np.testing.assert_allclose(y, made.network(x, executor="reference"), atol=1e-12)
    again = certify(with_attention(module, made.network), REVERSE, 2, Fraction(2))
    assert again.verdict is Verdict.PROVED
    assert again.eps == made.certificate.eps
    long = without_attention(made.network, filter_length=6)
    assert isinstance(mixers_of(long)[0], SeparableConvolution)
    again = certify(with_attention(long, made.network), REVERSE, 2, Fraction(2))
    assert again.eps == made.certificate.eps


@pytest.mark.parametrize("attack", ["tap", "copy", "W", "hook", "layer"])
def test_short_filters_that_were_changed_are_not_proved(attack: str) -> None:
    made, module = stacked()
    [stack] = [block for block in module.blocks if isinstance(block, ShortFilters)]
    mixer = stack.layers[1].get_submodule("layer")
    with torch.no_grad():
        if attack == "tap":
            mixer.get_parameter("filters")[-1, 0] += 2**-40
        elif attack == "copy":
            mixer.get_parameter("out_proj.weight")[-1].mul_(2)
        elif attack == "W":  # another sum, which is followed and not the one that is meant
            for layer in stack.layers:
                layer.get_parameter("layer.out_proj.weight")[: stack.width].mul_(1.5)
        elif attack == "hook":
            mixer.register_forward_hook(add_one)
        else:
            stack.layers = stack.layers[:-1]
    if attack != "W":
        with pytest.raises(InputError, match=r"multiple of the sum|not any more"):
            with_attention(module, made.network)
        return
    network = with_attention(module, made.network)
    found = certify(network, REVERSE, 2, Fraction(2))
    assert found.verdict is not Verdict.PROVED or found.eps > 2 * made.certificate.eps  # type: ignore[operator]


def test_filters_that_do_not_fit_are_refused() -> None:
    made = built("separable")
    with pytest.raises(InputError, match="never hears the first"):
        without_attention(made.network, filter_length=2)
    with pytest.raises(InputError, match="which has no filter"):
        without_attention(made.network, "bilinear", filter_length=3)


def test_what_is_not_a_mean_is_refused() -> None:
    shifts = ef.construct(SORT, grid=2, method="selective-shift").network
    with pytest.raises(InputError, match=r"heads with scores that are not 0"):
        without_attention(shifts, "bilinear")
    with pytest.raises(InputError, match=r"Build the network with method='averaging'"):
        without_attention(shifts)
    plain = ef.construct(SORT, grid=2, method="averaging").network
    with pytest.raises(InputError, match="does not say which mixer"):
        without_attention(plain)
    heads = AttentionStack(
        np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1)), np.zeros((1, 1, 1, 1)),
        np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1)),
    )  # fmt: skip
    with pytest.raises(InputError, match="which float64 would round"):
        without_attention(network_with_heads(3, 1, heads), "bilinear")
    assert without_attention(network_with_heads(3, 1, heads), "average") is not None


@pytest.mark.unhooked
def test_mixers_that_do_not_exist_are_refused() -> None:
    plain = ef.construct(SORT, grid=2, method="averaging").network
    with pytest.raises(InputError, match="mixer='pool' does not exist"):
        without_attention(plain, "pool")  # type: ignore[arg-type]
    with pytest.raises(GridError, match="mixer='pool' does not exist"):
        ef.plan(SORT, grid=2, method=ef.Averaging(mixer="pool"))  # type: ignore[arg-type]
