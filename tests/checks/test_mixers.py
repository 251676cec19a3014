"""Mixers judged: with positions and feed-forward layers, and without."""

from collections.abc import Callable
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
    AverageAttention,
    BilinearProjection,
    DynamicConvolution,
    LightConvolution,
    RelativeAttention,
    Residual,
    SeparableConvolution,
)
from everyformer.layers.positions import AbsolutePositions, SpecialToken
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


def test_attention_and_gates_alone_are_not_decided() -> None:
    """The negative control of EF011: they are not affine, with a counterexample."""
    makers = (LAYERS["light"][0], LAYERS["dynamic"][0])
    for layer in (placed(RelativeAttention(D, 2)), *(make() for make in makers)):
        found = check(layer, N, D, trials=2, feed_forward=False)
        assert found.lp.verdict is UNKNOWN
        assert found["EF011"].verdict is REFUTED
        assert found["EF011"].counterexample is not None


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
