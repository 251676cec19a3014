"""Mixers judged: with positions and feed-forward layers, and without."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from everyformer.checks.report import check
from everyformer.checks.subject import Subject
from everyformer.layers import (
    AbsolutePositions,
    AverageAttention,
    BilinearProjection,
    DynamicConvolution,
    LightConvolution,
    RelativeAttention,
    Residual,
    SeparableConvolution,
    SpecialToken,
)
from everyformer.model.attention_spec import AttentionSpec, Mixing
from everyformer.verdict import Verdict

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
N, D = 4, 2


def placed(layer: nn.Module) -> nn.Module:
    return AbsolutePositions(layer, N, D)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Verdict, str, float | None]] = {
    "mean": (lambda: AverageAttention(D), REFUTED, "permutations", 0.75**0.5),
    "mean, skip": (
        lambda: Residual(AverageAttention(D)), REFUTED, "permutations", 0.75**0.5
    ),
    "mean, positions": (
        lambda: placed(AverageAttention(D)), REFUTED, "permutations", 0.75**0.5
    ),
    "mean, skip, positions": (
        lambda: placed(Residual(AverageAttention(D))), PROVED, "a mean numbers", None
    ),
    "bilinear": (lambda: BilinearProjection(D, N), PROVED, "matrix of positions", None),
    "bilinear, skip": (
        lambda: Residual(BilinearProjection(D, N)), PROVED, "matrix of positions", None
    ),
    "K = 3": (lambda: SeparableConvolution(D, 3), PROVED, "filters number", None),
    "K = 2": (
        lambda: SeparableConvolution(D, 2), REFUTED, "token 4 never hears", 12**-0.5
    ),
    "K = 1": (
        lambda: SeparableConvolution(D, 1), REFUTED, "token 4 never hears", 12**-0.5
    ),
    "light": (
        lambda: LightConvolution(D, filters=1, filter_length=4), PROVED, "filters", None
    ),
    "dynamic": (
        lambda: DynamicConvolution(D, filters=1, filter_length=3), PROVED, "filters", None
    ),
    "dynamic, K = 2": (
        lambda: DynamicConvolution(D, filters=2, filter_length=2),
        REFUTED, "token 4 never hears", 12**-0.5,
    ),
}  # fmt: skip


@pytest.mark.rows(6)
@pytest.mark.parametrize("name", LAYERS)
def test_with_feed_forward_layers(name: str) -> None:
    make, verdict, reason, bound = LAYERS[name]
    torch.manual_seed(0)
    found = check(make(), N, D, trials=3)
    assert found.lp.verdict is verdict, str(found)
    assert reason in found.lp.reason
    assert found.lp.lower_bound == (None if bound is None else pytest.approx(bound))
    assert found.sup.verdict is (UNKNOWN if verdict is PROVED else REFUTED)


@pytest.mark.parametrize("name", ["mean, skip, positions", "bilinear", "K = 3"])
def test_without_feed_forward_layers_all_is_affine(name: str) -> None:
    found = check(LAYERS[name][0](), N, D, trials=2, feed_forward=False)
    assert (found.lp.verdict, found.sup.verdict) == (REFUTED, REFUTED)
    assert found.lp.lower_bound == pytest.approx(48**-0.5)
    assert found.sup.lower_bound == 0.25
    assert found["EF011"].verdict is PROVED
    assert "without feed-forward layers" in str(found)


def test_positions_and_gates_alone_are_not_decided() -> None:
    """The negative control of EF011 and EF012: not affine, with counterexamples."""
    makers = (LAYERS["light"][0], LAYERS["dynamic"][0])
    for layer in (placed(RelativeAttention(D, 2)), *(make() for make in makers)):
        found = check(layer, N, D, trials=2, feed_forward=False)
        assert (found.lp.verdict, found.sup.verdict) == (UNKNOWN, UNKNOWN)
        for code in ("EF011", "EF012"):
            assert found[code].verdict is REFUTED
            assert found[code].counterexample is not None


class Stack(nn.Module):
    """Three layers of PyTorch's attention with skip connections, and nothing else."""

    def __init__(self, bend: nn.Module | None = None) -> None:
        super().__init__()
        made = (nn.MultiheadAttention(D, 2, batch_first=True) for _ in range(3))
        self.layers = nn.ModuleList(made)
        self.bend = bend or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x + self.bend(x)


def test_softmax_attention_alone_is_affine_on_equal_tokens() -> None:
    """By structure and by operations; with a feed-forward layer nothing is refuted so."""
    torch.manual_seed(0)
    for layer, how in ((RelativeAttention(D, 2, encoding="t5"), "structure"),
                       (Stack(), "operations")):  # fmt: skip
        found = check(layer, N, D, trials=2, feed_forward=False)
        assert (found["EF012"].verdict, found["EF012"].how) == (PROVED, how)
        assert found.sup.verdict is REFUTED
        assert found.sup.source == "docs/rules.md, EF012"
        assert found.sup.lower_bound == N**0.5 / 4
        assert found["EF011"].verdict is REFUTED  # it is affine there alone
    assert check(Stack(), N, D, trials=2).sup.source != "docs/rules.md, EF012"
    bent = check(Stack(nn.ReLU()), N, D, trials=2, feed_forward=False)
    assert bent["EF012"].verdict is REFUTED
    assert bent["EF012"].counterexample is not None
    assert bent.sup.source != "docs/rules.md, EF012"


@given(st.fractions(-4, 4), st.fractions(-4, 4))
def test_no_affine_function_is_near_in_the_sup_norm(a: Fraction, b: Fraction) -> None:
    """Exactly, and sharp: a = 1/4, b = 0 is 1/4 away."""
    points = (Fraction(0), Fraction(1, 2), Fraction(1))
    assert max(abs(abs(t - points[1]) - a - b * t) for t in points) >= Fraction(1, 4)
    assert max(abs(abs(t - points[1]) - Fraction(1, 4)) for t in points) == Fraction(1, 4)


def test_in_lp_attention_alone_comes_near_the_same_target() -> None:
    """Why nothing is REFUTED in L^p: n = 2, d = 1, 51 heads, well below sqrt(1/48).

    x_1 becomes x_1 + bias + sum of w (x_2 + sigmoid((a x_1 + b) y) y), y = x_1 - x_2.
    """
    rng = np.random.default_rng(0)
    a = 150 * np.append(rng.standard_normal(50), 0)  # the last one is a mean
    b = -a * np.append(rng.random(50), 0)

    def heads(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        apart = (x - y)[:, None]
        mixed = y[:, None] + apart / (1 + np.exp(-(a * x[:, None] + b) * apart))
        return np.concatenate([np.ones_like(x)[:, None], mixed], axis=1)

    grid = (np.arange(40) + 0.5) / 40
    x, y = (part.ravel() for part in np.meshgrid(grid, grid))
    w = np.linalg.lstsq(heads(x, y), np.abs(x - 0.5) - x, rcond=1e-4)[0]
    x, y = rng.random((2, 4000))
    distance_sampled = np.mean((x + heads(x, y) @ w - np.abs(x - 0.5)) ** 2) ** 0.5
    assert distance_sampled < 0.1 < 48**-0.5


def test_the_first_token_of_causal_attention_alone_is_affine() -> None:
    """It hears itself alone: sqrt(1/48) away in L^2 from |x_11 - 1/2|, which is causal."""
    torch.manual_seed(0)
    layers = [RelativeAttention(D, 2, encoding="t5", causal=True) for _ in range(3)]
    stack = nn.Sequential(*map(Residual, layers)).double()
    X, Y = torch.randn(2, 1, N, D, dtype=torch.float64)
    with torch.no_grad():
        bend = stack((X + Y) / 2) - (stack(X) + stack(Y)) / 2
    assert float(bend[0, 0].abs().max()) < 1e-12
    assert float(bend[0, 1:].abs().max()) > 1e-3


def test_the_distance_of_an_affine_function_is_what_is_said() -> None:
    """Least squares on a fine grid: sqrt(1/48) and 1/4."""
    x = (np.arange(10**4) + 0.5) / 10**4
    f, basis = np.abs(x - 0.5), np.stack([np.ones_like(x), x], axis=1)
    best = np.linalg.lstsq(basis, f, rcond=None)[0]
    assert np.mean((f - basis @ best) ** 2) ** 0.5 == pytest.approx(48**-0.5, rel=1e-6)


class Shifted(BilinearProjection):
    """A subclass whose positions do nothing."""

    def mixed(self, x: torch.Tensor, key_padding_mask: torch.Tensor | None) -> torch.Tensor:
        return x


def frozen() -> nn.Module:
    layer = BilinearProjection(D, N)
    layer.position_weight.requires_grad_(False)
    return layer


def nothing(module: nn.Module, given: object, out: torch.Tensor) -> torch.Tensor:
    return 0 * out


def hooked() -> nn.Module:
    layer = BilinearProjection(D, N)
    layer.out_proj.register_forward_hook(nothing)
    return layer


def tied() -> nn.Module:
    layer = DynamicConvolution(D, filters=1, filter_length=2 * D)
    layer.filter_proj = layer.in_proj
    return layer


def without_bias_of_filters() -> nn.Module:
    layer = DynamicConvolution(D, filters=1, filter_length=3)
    layer.filter_proj.register_parameter("bias", None)
    return layer


def frozen_bias_of_filters() -> nn.Module:
    layer = DynamicConvolution(D, filters=1, filter_length=3)
    layer.filter_proj.bias.requires_grad_(False)
    return layer


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    "make",
    [
        lambda: Shifted(D, N),
        frozen,
        hooked,
        lambda: Residual(placed(AverageAttention(D))),
        lambda: SpecialToken(SeparableConvolution(D, 3), D),
        lambda: DynamicConvolution(D, filters=1, filter_length=3, bias=False),
        tied,
        without_bias_of_filters,
        frozen_bias_of_filters,
    ],
    ids=[
        "subclass",
        "frozen",
        "hook",
        "positions inside the skip",
        "special token",
        "no bias of filters",
        "filters tied to the gate",
        "bias of filters taken away",
        "bias of filters frozen",
    ],
)
def test_what_was_changed_is_not_proved(make: Callable[[], nn.Module]) -> None:
    assert check(make(), N, D, trials=2).verdict is not PROVED


FLAGS = ("absolute", "skip", "gated", "special_token", "feed_forward_bias")
MIXINGS: tuple[Mixing, ...] = ("average", "positions", "offsets")


@given(
    st.sampled_from(MIXINGS),
    st.integers(1, 5),
    st.sets(st.sampled_from(FLAGS)),
    st.integers(2, 9),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_no_spec_is_proved_and_refuted(
    mixing: Mixing, K: int, flags: set[str], n: int, fed: bool
) -> None:
    spec = AttentionSpec(
        "any",
        mixing=mixing,
        filter_length=K,
        absolute="absolute" in flags,
        skip="skip" in flags,
        gated="gated" in flags,
        special_token="special_token" in flags,
        feed_forward_bias="feed_forward_bias" in flags,
    )
    found = check(Subject("spec", None, spec, n, D), feed_forward=fed)
    if found.lp.verdict is PROVED:
        assert fed
        assert found.sup.verdict is not REFUTED
        assert spec.mixing != "average" or (spec.absolute and spec.skip)
        assert spec.mixing != "offsets" or spec.filter_length > 2
    if not fed and not spec.gated:
        assert found.lp.verdict is REFUTED


def numbers_of_the_mean(s: tuple[int, ...], M: int) -> list[int]:
    A = [one * M**j for j, one in enumerate(s)]
    return [one + M ** len(s) * sum(A) for one in A]


def numbers_of_positions(s: tuple[int, ...], M: int, skip: bool) -> list[int]:
    R = M ** len(s)
    C = sum(one * M**j for j, one in enumerate(s))
    return [skip * one + M * R**j * C for j, one in enumerate(s)]


def numbers_of_a_filter(s: tuple[int, ...], M: int, K: int, skip: bool) -> list[int]:
    n, r = len(s), (K - 1) // 2
    return [
        skip * s[j] + M * sum(s[j + k - r] * M**k for k in range(K) if 0 <= j + k - r < n)
        for j in range(n)
    ]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(("n", "V"), [(2, 3), (3, 3), (4, 2), (5, 2)])
def test_numbers_of_step_2_are_all_different(n: int, V: int, skip: bool) -> None:
    """Over all sequences, in integers: what docs/mixers.md proves."""
    sequences = list(product(range(1, V + 1), repeat=n))
    M = V + 1

    def apart(numbers: list[list[int]]) -> bool:
        return len({one for row in numbers for one in row}) == n * V**n

    assert apart([numbers_of_the_mean(s, M) for s in sequences])
    assert apart([numbers_of_positions(s, M, skip) for s in sequences])
    for K in (3, 4, 5, 2 * n - 1):
        known, r = sequences, (K - 1) // 2
        for _ in range(-(-(n - 1) // r)):
            base = max(one for row in known for one in row) + 1
            found = [numbers_of_a_filter(s, base, K, skip) for s in known]
            distinct = sorted({one for row in found for one in row})
            names = {one: k + 1 for k, one in enumerate(distinct)}
            known = [tuple(names[one] for one in row) for row in found]
        assert apart([list(row) for row in known])
    assert not apart([[sum(s)] * n for s in sequences])
    assert not apart([numbers_of_a_filter(s, M, 2, skip) for s in sequences])
