"""Facts that follow from operations hold; those that do not hold never follow.

Modules are put together at random from pieces, good and bad ones. What is PROVED of them
must be true on random weights and inputs, to rounding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from everyformer import patterns
from everyformer.checks.calling import call
from everyformer.checks.following.facts import FINITE, constant
from everyformer.checks.following.shapes import matching_groups
from everyformer.checks.following.walk import Followed, follow
from everyformer.checks.rules import (
    causal,
    equal_tokens,
    permutations,
    tokens_apart,
    zero_to_zero,
)
from everyformer.checks.rules.right_stochastic import by_operations as stochastic
from everyformer.checks.subject import Subject, Trial
from everyformer.layers import SparseAttention
from everyformer.layers.sparse_attention import Configuration

N, D, HEADS = 5, 4, 2


class Head(nn.Module):
    """Attention written out, with places to go wrong."""

    def __init__(
        self,
        flaw: str = "",
        *,
        causal: bool = False,
        fused: bool = False,
        blocks: bool = False,
    ) -> None:
        super().__init__()
        self.flaw, self.causal, self.fused, self.blocks = flaw, causal, fused, blocks
        self.project = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)
        self.table = nn.Parameter(torch.randn(HEADS, N, N))
        self.shift = nn.Parameter(torch.randn(HEADS, N, D // HEADS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        parts = self.project(x).view(1, n, 3, HEADS, D // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if self.flaw == "values":
            v = v + self.shift  # by key: all queries see the same, without a mask
        if self.fused:
            near = None if self.causal or not self.blocks else ~self.apart(n)
            mixed = nn.functional.scaled_dot_product_attention(
                q, k, v, near, is_causal=self.causal
            )
            return self.out(mixed.transpose(1, 2).reshape(1, n, D))
        logits = q @ k.transpose(-1, -2)
        if self.blocks:
            far = torch.zeros(n, n, dtype=x.dtype).masked_fill(self.apart(n), -torch.inf)
            logits = logits + far
        if self.flaw == "bias":
            logits = logits + self.table
        if self.causal:
            later = torch.ones(n, n, dtype=torch.bool).triu(1)
            logits = logits.masked_fill(later, -torch.inf)
        if self.flaw == "no denominator":
            weights = logits.exp() / n
        elif self.flaw == "wrong axis":
            weights = logits.softmax(dim=-2)
        else:
            weights = logits.softmax(dim=-1)
        if self.flaw == "gain":
            weights = weights * self.table
        return self.out((weights @ v).transpose(1, 2).reshape(1, n, D))

    def apart(self, n: int) -> torch.Tensor:
        """Pairs of tokens that are not both before the third, or both after it."""
        late = torch.arange(n) >= 2
        return late[:, None] != late[None]


class Piece(nn.Module):
    """One operation by name, residual where its result has the shape of x."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.linear = nn.Linear(D, D, bias="no bias" not in name)
        self.norm = nn.LayerNorm(D)
        self.over_tokens = nn.LayerNorm([N, D])
        self.positions = nn.Parameter(torch.randn(N, D))
        self.mixing = nn.Linear(N, N)
        self.table = nn.Embedding(N, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        result: Callable[[], torch.Tensor] = {
            "linear": lambda: self.linear(x),
            "linear no bias": lambda: self.linear(x).relu(),
            "gelu": lambda: nn.functional.gelu(x),
            "exp": lambda: x.exp(),
            "norm": lambda: self.norm(x),
            "norm over tokens": lambda: self.over_tokens(x),
            "mean": lambda: x.mean(1, keepdim=True).expand_as(x),
            "max": lambda: x.amax(1, keepdim=True) * x,
            "positions": lambda: self.positions,
            "embedded positions": lambda: self.table(torch.arange(n)),
            "roll": lambda: x.roll(1, 1),
            "flip": lambda: x.flip(1),
            "cumsum": lambda: x.cumsum(1),
            "first": lambda: x[:, :1].expand_as(x),
            "pairs": lambda: torch.cat([x[:, :2], x[:, 2:] * 2], dim=1),
            "halves": lambda: torch.cat(x.chunk(2, -1)[::-1], dim=-1),
            "mixer": lambda: self.mixing(x.transpose(1, 2)).transpose(1, 2),
            "merge": lambda: x.reshape(1, n * D).flip(1).reshape(1, n, D),
            "gram": lambda: (x @ x.transpose(1, 2)) @ x,
            "sort": lambda: x.sort(dim=1).values,
            "one": lambda: torch.ones_like(x),
            "ramp": lambda: torch.linspace(0, 1, n, dtype=x.dtype)[:, None] * x,
            "norm of row sums": lambda: x / (1 + x.abs().sum(-1, keepdim=True)),
        }[self.name]
        return x + result()


PIECES = (
    "linear", "linear no bias", "gelu", "exp", "norm", "norm over tokens", "mean", "max",
    "positions", "embedded positions", "roll", "flip", "cumsum", "first", "pairs", "halves",
    "mixer", "merge", "gram", "sort", "one", "ramp", "norm of row sums",
)  # fmt: skip
FLAWS = ("", "bias", "values", "no denominator", "wrong axis", "gain")


def heads() -> st.SearchStrategy[nn.Module]:
    return st.builds(
        Head,
        st.sampled_from(FLAWS),
        causal=st.booleans(),
        fused=st.booleans(),
        blocks=st.booleans(),
    )


MODULES = st.lists(
    st.one_of(st.sampled_from(PIECES).map(Piece), heads()), min_size=1, max_size=4
).map(lambda parts: nn.Sequential(*parts))


def followed(module: nn.Module) -> Followed:
    x = torch.zeros(1, N, D, dtype=torch.float64)
    return follow(module.double().eval(), call, x)


def redrawn(module: nn.Module, seed: int) -> Trial:
    return Subject("it", module.double().eval(), None, N, D).redrawn(seed)


RULES = (
    permutations.RULE,
    equal_tokens.RULE,
    causal.RULE,
    zero_to_zero.RULE,
    tokens_apart.RULE,
)


@given(MODULES, st.integers(0, 2**20))
@settings(max_examples=8, deadline=None)
def test_what_follows_is_true(module: nn.Sequential, seed: int) -> None:
    facts = followed(module)
    trial = redrawn(module, seed)
    rng = np.random.default_rng(seed)
    for rule in RULES:
        assert rule.by_operations is not None
        assert rule.search is not None
        if rule.by_operations(facts).holds:
            for X in rule.search.inputs(rng, N, D):
                size = rule.search.violation(trial, X / 4)
                assert size is not None
                assert size < 1e-9 or np.isnan(size), rule.name


@given(MODULES, st.integers(0, 2**20))
@settings(max_examples=8, deadline=None)
def test_nothing_is_heard_outside_the_receptive_fields(
    module: nn.Sequential, seed: int
) -> None:
    """The oracle is the derivative of every output by every token."""
    fields = followed(module).receptive_fields
    if fields is None:
        return
    trial = redrawn(module, seed)
    x = torch.randn(1, N, D, dtype=torch.float64, generator=torch.manual_seed(seed)) / 4
    jacobian: Any = torch.autograd.functional.jacobian(partial(call, trial.module), x)
    links = jacobian[0, :, :, 0].abs().sum((1, 3))
    assert not links[~fields].any()


@pytest.mark.rows(4)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("causal_", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_receptive_fields_of_masked_attention(
    fused: bool, causal_: bool, blocks: bool
) -> None:
    """They are those of the mask, no larger; and of two layers, their product."""
    blocks = blocks and not (fused and causal_)
    head = Head("bias", causal=causal_, fused=fused, blocks=blocks)
    mask = torch.ones(N, N, dtype=torch.bool)
    mask = mask.tril() if causal_ else mask
    mask = mask & ~head.apart(N) if blocks else mask
    found = followed(head).receptive_fields
    assert found is not None
    assert torch.equal(found, mask)
    apart = tokens_apart.by_operations(followed(head)).holds
    assert apart is (True if causal_ or blocks else None)
    shifted = nn.Sequential(head, Piece("gelu"), Piece("norm"), Head(causal=True))
    deep = followed(shifted).receptive_fields
    assert deep is not None
    expected = (torch.ones(N, N).tril() @ mask.float()) > 0
    assert torch.equal(deep, expected)


def test_a_large_number_hides_nothing() -> None:
    """Only -inf has no weight whatever the scores are."""

    class Nearly(Head):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = k = v = self.project(x)[..., :D]
            far = torch.ones(N, N, dtype=torch.bool).triu(1)
            weights = (q @ k.mT).masked_fill(far, -1e9).softmax(-1)
            return self.out(weights @ v)

    facts = followed(Nearly())
    assert causal.by_operations(facts).holds is None
    assert tokens_apart.by_operations(facts).holds is None


@pytest.mark.parametrize("name", ["linear", "gelu", "norm", "mean", "gram", "halves"])
def test_pieces_that_treat_tokens_alike(name: str) -> None:
    facts = followed(Piece(name))
    assert permutations.by_operations(facts).holds
    assert equal_tokens.by_operations(facts).holds


@pytest.mark.parametrize(
    "name", ["positions", "embedded positions", "cumsum", "merge", "mixer", "ramp"]
)
def test_pieces_that_do_not(name: str) -> None:
    facts = followed(Piece(name))
    assert permutations.by_operations(facts).holds is None
    assert equal_tokens.by_operations(facts).holds is None


@pytest.mark.rows(6)
@pytest.mark.parametrize("causal_", [False, True])
@pytest.mark.parametrize("flaw", FLAWS)
def test_attention_written_out(flaw: str, causal_: bool) -> None:
    """Theorem 2 and its ways out: a gain, values, no denominator, sums over queries."""
    facts = followed(Head(flaw, causal=causal_))
    stays = flaw in ("", "bias") or (flaw != "gain" and not causal_)
    assert equal_tokens.by_operations(facts).holds is (True if stays else None)
    ignores = flaw in ("", "no denominator", "wrong axis") and not causal_
    assert permutations.by_operations(facts).holds is (True if ignores else None)
    weights = flaw in ("", "bias", "values")
    assert stochastic(facts).holds is (True if weights else None)


def test_fused_attention_keeps_to_the_past() -> None:
    assert causal.by_operations(followed(Head(causal=True, fused=True))).holds
    assert causal.by_operations(followed(Head(fused=True))).holds is None


def test_a_mask_that_leaves_no_key_proves_nothing() -> None:
    class Masked(nn.Module):
        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row
            self.linear = nn.Linear(D, D)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(N, N, dtype=torch.bool)
            mask[self.row] = self.row == 0
            return nn.functional.scaled_dot_product_attention(
                x, x, self.linear(x), attn_mask=mask
            )

    assert equal_tokens.by_operations(followed(Masked(0))).holds
    assert equal_tokens.by_operations(followed(Masked(1))).holds is None


@pytest.mark.parametrize(("silent", "follows"), [((), True), ((2,), False)])
def test_rows_that_are_set_to_zero_sum_to_zero(
    silent: tuple[int, ...], follows: bool
) -> None:
    """A known mask that hides nothing changes nothing; one that hides a row does."""

    class Masked(Head):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = k = v = self.project(x)[..., :D]
            empty = torch.zeros(N, 1, dtype=torch.bool)
            empty[list(silent)] = True
            weights = (q @ k.mT).softmax(-1).masked_fill(empty, 0.0)
            return self.out(weights @ v)

    module = Masked().double()
    facts = followed(module)
    assert equal_tokens.by_operations(facts).holds is (True if follows else None)
    assert stochastic(facts).holds is (True if follows else None)
    out = call(module, torch.ones(1, N, D, dtype=torch.float64))
    assert torch.allclose(out, out[:, :1]) == follows


@pytest.mark.parametrize("configuration", ["sequential", "union", "multihead"])
def test_sparse_attention_is_a_mean_over_its_pattern(configuration: Configuration) -> None:
    layer = SparseAttention(D, 2, patterns.strided(9, 3), configuration=configuration)
    facts = Subject.of(layer, 9, D).followed
    assert stochastic(facts).holds
    assert equal_tokens.by_operations(facts).holds


def test_a_mask_that_depends_on_the_input_proves_nothing() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(N, N))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = (x @ x.transpose(1, 2)) > self.table
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    assert equal_tokens.by_operations(followed(Masked())).holds is None


def test_zero_to_zero_needs_all_biases_gone() -> None:
    none = nn.Sequential(Piece("linear no bias"), Piece("gelu"), Piece("gram"))
    assert zero_to_zero.by_operations(followed(none)).holds
    one = nn.Sequential(Piece("linear no bias"), Piece("linear"))
    assert zero_to_zero.by_operations(followed(one)).holds is None


def test_control_flow_on_numbers_is_not_followed() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.roll(1, 1) if bool(x.sum() > 100) else x

    found = followed(Branching())
    assert found.output is None
    assert "export" in found.obstacle
    assert equal_tokens.by_operations(found).holds is None


def test_writing_in_place_is_seen() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.randn(N, D))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 1.0
            y[:, 1:] += self.positions[1:]
            return y

    assert equal_tokens.by_operations(followed(Writing())).holds is None
    assert permutations.by_operations(followed(Writing())).holds is None


def test_training_dropout_is_not_followed() -> None:
    class Dropping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x, 0.5, training=True)

    assert equal_tokens.by_operations(followed(Dropping())).holds is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_groups_of_a_view_match(shape: list[int]) -> None:
    """Products agree group by group, and every dimension is in one group."""
    total = int(np.prod(shape))
    new: list[int] = []
    while total > 1:
        factor = next(k for k in range(2, total + 1) if total % k == 0)
        new, total = [*new, factor], total // factor
    new = [1, *new] if len(shape) % 2 else [*new, 1]
    groups = matching_groups(tuple(shape), tuple(new))
    assert [d for old, _ in groups for d in old] == list(range(len(shape)))
    assert [d for _, fresh in groups for d in fresh] == list(range(len(new)))
    for old, fresh in groups:
        assert np.prod([shape[d] for d in old]) == np.prod([new[d] for d in fresh])


def test_constants_know_their_numbers() -> None:
    table = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert constant(table).uniform == {0}
    assert constant(torch.tensor([0.0, -torch.inf])).blocked is not None
    assert constant(torch.tensor([0.0, torch.nan])).blocked is None
    assert constant(torch.zeros(2, dtype=torch.int64)).blocked is FINITE
