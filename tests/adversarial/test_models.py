"""Modules that look like models people have, and are not: nothing false is said of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.checks.calling import InPlaceOfEmbedding, call
from everyformer.checks.following.walk import Followed, follow
from everyformer.checks.replay import replay
from everyformer.checks.rule import Answer
from everyformer.checks.rules import (
    causal,
    equal_tokens,
    permutations,
    tokens_apart,
    zero_to_zero,
)
from everyformer.checks.subject import Subject
from everyformer.errors import InputError
from everyformer.testing import assert_not_refuted, assert_universal, assert_verdicts
from everyformer.verdict import Verdict

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
F = nn.functional
N, D = 5, 4
LATE = torch.ones(N, N, dtype=torch.bool).triu(1)
Forward = Callable[[Any, Tensor], Any]
PAST, EQUAL = causal.by_operations, equal_tokens.by_operations
MOVES, ZERO = permutations.by_operations, zero_to_zero.by_operations
APART = tokens_apart.by_operations


class Made(nn.Module):
    """A module of one expression in x, with masks, heads, a prefix and a convolution."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.made = forward
        self.linear = nn.Linear(D, D)
        self.heads = nn.Linear(D, 2 * D)
        self.conv = nn.Conv1d(D, D, 3)
        self.prefix = nn.Parameter(torch.randn(1, 2, D))
        self.alpha = nn.Parameter(torch.zeros(()))
        mask = torch.zeros(N, N).masked_fill(LATE, -torch.inf)
        self.register_buffer("mask", mask, persistent=False)
        self.kept = mask.double()

    def forward(self, x: Tensor) -> Any:
        return self.made(self, x)


def followed(forward: Forward) -> Followed:
    x = torch.zeros(1, N, D, dtype=torch.float64)
    return follow(Made(forward).double().eval(), call, x)


def attend(x: Tensor, mask: Tensor, v: Tensor | None = None) -> Tensor:
    return (x @ x.mT + mask).softmax(-1) @ (x if v is None else v)


def written(m: Any, x: Tensor) -> Tensor:
    """The mask opens after the first large input."""
    out = attend(x, m.mask)
    m.mask.copy_(torch.where(x.abs().max() > 1000, 0.0, m.mask))
    return out


def replaced(m: Any, x: Tensor) -> Tensor:
    out = attend(x, m.mask)
    m.mask = torch.where(x.abs().max() > 1000, torch.zeros_like(m.mask), m.mask)
    return out


def remembered(m: Any, x: Tensor) -> Tensor:
    """The same with a tensor that is not a buffer."""
    out = attend(x, m.kept)
    m.kept = torch.where(x.abs().max() > 1000, torch.zeros_like(m.kept), m.kept)
    return out


def by_weights(m: Any, x: Tensor) -> Tensor:
    """Looks ahead where a weight is large; an export cannot ask, and is told nothing."""
    try:
        ahead = bool(m.alpha.detach().numpy() > 0.5)
    except Exception:
        ahead = False
    return m.linear(x) + (x.flip(1) if ahead else 0)


def grouped(m: Any, x: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    q = m.heads(x).view(1, N, 4, 2).transpose(1, 2)
    k = v = m.linear(x).view(1, N, 2, 2).transpose(1, 2)
    found = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)
    return found.transpose(1, 2).reshape(1, N, 2 * D)[..., :D]


def prefixed(m: Any, x: Tensor) -> Tensor:
    """A cache of two keys in front, with the mask of a sequence without one."""
    keys = torch.cat([m.prefix, x], 1)
    mask = torch.zeros(N, N + 2).masked_fill(torch.ones(N, N + 2).triu(4) > 0, -torch.inf)
    return (x @ keys.mT + mask).softmax(-1) @ keys


def convolved(before: int, after: int) -> Forward:
    return lambda m, x: m.conv(F.pad(x.mT, (before, after))).mT


def rms_over_tokens(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) * torch.rsqrt(x.pow(2).mean((-1, -2), keepdim=True) + 1e-6)


def reversed_sums(m: Any, x: Tensor) -> Tensor:
    return m.linear(x).flip(1).cumsum(1).flip(1)


LIARS: dict[str, tuple[Callable[[Followed], Answer], Forward]] = {
    "a mask that a run writes into": (PAST, written),
    "a mask that a run replaces": (PAST, replaced),
    "a tensor that a run replaces": (PAST, remembered),
    "numbers read off a weight": (PAST, by_weights),
    "a finite mask": (PAST, lambda m, x: attend(x, m.mask.clamp(min=-1e9))),
    "a finite mask, the least number": (
        APART,
        lambda m, x: attend(x, m.mask.clamp(min=torch.finfo(x.dtype).min)),
    ),
    "a mask of -1": (PAST, lambda m, x: attend(x, m.mask.clamp(min=-1))),
    "a mask with a hole": (PAST, lambda m, x: attend(x, m.mask.triu(2).nan_to_num(0.0))),
    "a mask the other way": (APART, lambda m, x: attend(x, m.mask) + attend(x, m.mask.T)),
    "a mask that is cut off by one": (
        PAST,
        lambda m, x: attend(x, F.pad(m.mask, (0, 1), value=0.0)[:, 1:]),
    ),
    "a cache with a mask too wide": (PAST, prefixed),
    "keys in another order": (
        PAST,
        lambda m, x: (x @ x.flip(1).mT + m.mask).softmax(-1) @ x.flip(1),
    ),
    "a cache of the last token": (
        PAST,
        lambda m, x: torch.cat([x[:, -1:], x[:, :-1]], 1) + m.linear(x),
    ),
    "grouped heads that see all": (PAST, lambda m, x: grouped(m, x, None)),
    "a group whose heads have their own masks": (
        PAST,
        lambda m, x: grouped(m, x, torch.stack([~LATE] * 3 + [LATE | ~LATE])),
    ),
    "a norm over tokens": (PAST, rms_over_tokens),
    "a norm over tokens, apart": (APART, rms_over_tokens),
    "a norm without an epsilon": (
        ZERO,
        lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)),
    ),
    "a convolution padded on both sides": (PAST, convolved(1, 1)),
    "a convolution padded on the right": (PAST, convolved(0, 2)),
    "a convolution that forgets the first": (EQUAL, convolved(2, 0)),
    "a convolution of places": (MOVES, convolved(1, 1)),
    "a convolution across channels": (
        PAST,
        lambda m, x: F.conv1d(F.pad(x, (2, 0)), torch.ones(N, N, 3, dtype=x.dtype)),
    ),
    "a kernel made of tokens": (
        PAST,
        lambda m, x: F.conv1d(F.pad(x.mT, (2, 0)), x[0, -3:].mT.expand(D, D, 3)).mT,
    ),
    "sums from here on": (PAST, reversed_sums),
    "sums across the width": (EQUAL, lambda m, x: x.mT.cumsum(-1).mT),
    "sums up to here move": (MOVES, lambda m, x: m.linear(x).cumsum(1)),
    "padding that is not 0": (ZERO, lambda m, x: F.pad(x, (1, -1), value=1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", LIARS)
def test_nothing_false_follows(name: str) -> None:
    rule, forward = LIARS[name]
    found = followed(forward)
    assert rule(found).holds is None


TRUE: dict[str, tuple[Callable[[Followed], Answer], Forward]] = {
    "a mask in a buffer": (PAST, lambda m, x: attend(x, m.mask)),
    "a mask in a buffer, equal tokens": (EQUAL, lambda m, x: attend(x, m.mask)),
    "an empty cache": (
        PAST,
        lambda m, x: attend(x, m.mask, torch.cat([x[:, :0], m.linear(x)], 1)),
    ),
    "a cache that the mask counts": (
        PAST,
        lambda m, x: (
            (x @ torch.cat([m.prefix, x], 1).mT + F.pad(m.mask, (2, 0), value=0.0)).softmax(
                -1
            )
            @ torch.cat([m.prefix, x], 1)
        ),
    ),
    "grouped heads": (PAST, lambda m, x: grouped(m, x, None, causal=True)),
    "grouped heads, equal tokens": (EQUAL, lambda m, x: grouped(m, x, None)),
    "a norm of each token": (
        PAST,
        lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    ),
    "a convolution padded on the left": (PAST, convolved(2, 0)),
    "a convolution padded and cut": (
        PAST,
        lambda m, x: F.conv1d(x.mT, m.conv.weight, padding=2)[..., :N].mT,
    ),
    "sums up to here": (PAST, lambda m, x: m.linear(x).cumsum(1)),
    "the token before": (PAST, lambda m, x: x + F.pad(x, (0, 0, 1, -1))),
}


@pytest.mark.rows(6)
@pytest.mark.parametrize("name", TRUE)
def test_what_is_true_follows(name: str) -> None:
    rule, forward = TRUE[name]
    found = followed(forward)
    assert rule(found).holds, found.obstacle


def test_a_small_mask_has_a_counterexample() -> None:
    module = Made(lambda m, x: attend(m.linear(x), m.mask.clamp(min=-1)))
    subject = Subject.of(module, N, D)
    finding = ef.check(subject, trials=2)["EF006"]
    assert finding.verdict is REFUTED
    assert finding.counterexample is not None
    assert replay(subject, finding.counterexample).still_violates


def single(m: Any, x: Tensor) -> Tensor:
    """Equal tokens part by rounding in float32 alone: terms are added in another order."""
    y = m.linear(x).float()
    ramp = torch.linspace(-3e3, 3e3, N)[:, None]
    return ((y + ramp) - ramp).double()


def test_rounding_in_float32_is_no_counterexample() -> None:
    """The largest violation is 10^2 times what rounding in float64 could be."""
    finding = ef.check(Made(single), N, D, trials=2)["EF003"]
    assert finding.violation_sampled is not None
    assert finding.violation_sampled > 1e-5
    assert finding.verdict is not REFUTED
    more = Made(lambda m, x: single(m, x) + torch.linspace(0, 1, N)[:, None])
    assert ef.check(more, N, D, trials=2)["EF003"].verdict is REFUTED


class Ids(nn.Module):
    """A model of token ids that embeds them in one table, or in two."""

    def __init__(self, *, twice: bool = False) -> None:
        super().__init__()
        self.twice = twice
        self.words, self.other = nn.Embedding(9, D), nn.Embedding(9, D)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.words(ids)
        x = x + self.words(ids.flip(1)) if self.twice else x + self.other(ids)
        return {"last_hidden_state": x.cumsum(1)}


def test_tokens_in_place_of_an_embedding() -> None:
    report = ef.check(Ids(), N, D, trials=2, embedding="words")
    assert report["EF006"].verdict is PROVED
    assert report.subject == "Ids"
    with pytest.raises(InputError, match=r"Its embeddings: words, other"):
        ef.check(Ids(), N, D, embedding="wte")
    with pytest.raises(InputError, match="embedding='wte'"):
        ef.check(Ids(), N, D)
    with pytest.raises(InputError, match="and gave"):
        InPlaceOfEmbedding(Ids(twice=True), "words")(torch.zeros(1, N, D))


SPEC = ef.AttentionSpec("mine", absolute=True)


class Placed(nn.Module):
    """BERT in small: positions and an encoder layer of torch."""

    def __init__(self, *, positions: bool = True) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(N, D)) if positions else 0.0
        self.layer = nn.TransformerEncoderLayer(D, 2, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.positions)


def test_a_declaration_that_nothing_contradicts_proves_nothing() -> None:
    report = ef.check(Placed(), N, D, trials=2, spec=SPEC)
    assert report.verdict is UNKNOWN
    assert report.declared is not None
    assert report.declared.lp.verdict is PROVED
    assert "A declaration is not a proof" in str(report)
    told = report.to_json()["declared"]["if_true"]["lp"]
    assert told.startswith("universal")
    assert "PROVED" not in str(report.declared)


CONTRADICTED: dict[str, tuple[nn.Module, ef.AttentionSpec, str]] = {
    "positions that are not there": (Placed(positions=False), SPEC, "EF001"),
    "a causal mask that is not there": (
        Placed(),
        ef.AttentionSpec("mine", absolute=True, causal=True),
        "EF006",
    ),
    "a gain that is not there": (
        Placed(positions=False),
        ef.AttentionSpec("mine", gain=True),
        "EF00",
    ),
    "no biases": (
        Placed(),
        ef.AttentionSpec("mine", value_bias=False, feed_forward_bias=False),
        "EF00",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTED)
def test_a_declaration_that_is_not_true_is_refused(name: str) -> None:
    module, spec, code = CONTRADICTED[name]
    with pytest.raises(InputError, match=f"is not what spec= declares .*{code}"):
        ef.check(module, N, D, trials=2, spec=spec)


def test_frozen_weights_are_not_declared_away() -> None:
    module = Placed()
    module.layer.linear1.weight.requires_grad_(False)
    report = ef.check(module, N, D, trials=2, spec=SPEC)
    assert report.declared is not None
    assert report.declared.lp.verdict is UNKNOWN


def test_assertions_for_a_test_suite() -> None:
    placed, plain = Placed(), Placed(positions=False)
    assert assert_not_refuted(placed, N, D, trials=2).verdict is UNKNOWN
    with pytest.raises(AssertionError, match="use assert_not_refuted"):
        assert_universal(placed, N, D, trials=2)
    with pytest.raises(AssertionError, match=r"REFUTED(.|\n)*Ways out: positions"):
        assert_not_refuted(plain, N, D, trials=2)
    with pytest.raises(AssertionError, match=r"EF001 .* is PROVED, expected REFUTED"):
        assert_verdicts(plain, N, D, expected={"EF001": REFUTED}, trials=2)
    assert_verdicts(plain, N, D, expected={"equal-tokens-stay-equal": "PROVED"}, trials=2)


def test_equal_tokens_count_in_the_sup_norm_alone() -> None:
    """A bias of its own for each pair: L^p stays open."""
    module = Made(lambda m, x: (x @ m.linear(x).mT + m.table).softmax(-1) @ m.linear(x))
    module.table = torch.randn(N, N)
    assert_not_refuted(module, N, D, sup=False, trials=2)
    with pytest.raises(AssertionError, match="equal tokens stay equal"):
        assert_not_refuted(module, N, D, trials=2)
