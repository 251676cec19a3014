"""Modules that fooled an earlier state: nothing false may be said of them."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.masked import masked_tensor
from torch.nn.functional import scaled_dot_product_attention as attend

from everyformer.checks.calling import call
from everyformer.checks.following.walk import Followed, follow
from everyformer.checks.report import check
from everyformer.checks.rule import Answer
from everyformer.checks.rules import (
    causal,
    equal_tokens,
    permutations,
    tokens_apart,
    zero_to_zero,
)
from everyformer.checks.rules.right_stochastic import by_operations as stochastic
from everyformer.checks.subject import Subject, Trial
from everyformer.errors import InputError
from everyformer.layers.by_name import attention_by_name
from everyformer.model.attention_spec import AttentionSpec
from everyformer.verdict import Verdict

N, D = 5, 4
Forward = Callable[[Any, torch.Tensor], torch.Tensor]
PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN


class Made(nn.Module):
    """A module of one expression in x, a linear map, a table (n, n) and positions."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)
        self.table = nn.Parameter(torch.randn(N, N))
        self.positions = nn.Parameter(torch.randn(N, D))
        third = torch.tensor([2])
        self.register_buffer("mask", torch.zeros(N, N).index_fill(0, third, -torch.inf))
        self.made = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.made(self, x)


def followed(forward: Forward) -> Followed:
    x = torch.zeros(1, N, D, dtype=torch.float64)
    return follow(Made(forward).double().eval(), call, x)


def constant_attention(m: Any, x: torch.Tensor) -> torch.Tensor:
    q = torch.zeros(1, N, D, dtype=x.dtype)
    return x + attend(q, q, x, is_causal=True).sum(1, keepdim=True)


def product_and_sum(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = x + attend(x, x, x)
    weights = (x @ x.mT).softmax(-1) * m.table
    return x + (weights[..., None] * m.linear(x)[:, None]).sum(2)


def late() -> torch.Tensor:
    """Pairs with a later key."""
    return torch.ones(N, N, dtype=torch.bool).triu(1)


def causal_weights(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return (x @ x.mT).masked_fill(late(), -torch.inf).softmax(dim)


def one_head_sees_all(m: Any, x: torch.Tensor) -> torch.Tensor:
    heads = torch.stack([late(), torch.zeros(N, N, dtype=torch.bool)])
    scores = (x @ x.mT)[:, None].masked_fill(heads, -torch.inf)
    return (scores.softmax(-1) @ x[:, None]).sum(1)


EQUAL, MOVES = equal_tokens.by_operations, permutations.by_operations
ZERO, PAST = zero_to_zero.by_operations, causal.by_operations
APART = tokens_apart.by_operations

TRAPS: dict[str, tuple[Callable[[Followed], Answer], Forward]] = {
    "a number read off a token": (PAST, lambda m, x: m.linear(x) * x[0, 1, 0].item()),
    "weights cut to integers": (
        EQUAL,
        lambda m, x: (x @ x.mT + m.table).softmax(-1).long().to(x.dtype) @ x,
    ),
    "weights cut to half": (
        EQUAL,
        lambda m, x: (x @ x.mT + m.table).softmax(-1).bfloat16().double() @ x,
    ),
    "products and sums": (stochastic, product_and_sum),
    "a row without keys": (stochastic, lambda m, x: attend(x, x, x, attn_mask=m.mask)),
    "a row without keys, equal": (EQUAL, lambda m, x: attend(x, x, x, attn_mask=m.mask)),
    "a causal mask on constants": (MOVES, constant_attention),
    "a causal mask on positions": (
        EQUAL,
        lambda m, x: attend(
            torch.zeros_like(x), torch.zeros_like(x), x + m.positions, is_causal=True
        ),
    ),
    "division by what may be 0": (
        EQUAL,
        lambda m, x: attend(x, x, x, attn_mask=-1 / m.table.relu()),
    ),
    "a bound cut to an integer": (
        EQUAL,
        lambda m, x: attend(x, x, x, attn_mask=(m.table**2 + 0.5).long().double().log()),
    ),
    "True is 1": (ZERO, lambda m, x: x + True),
    "0 / 0": (ZERO, lambda m, x: x / x.abs().sum(-1, keepdim=True)),
    "no epsilon": (ZERO, lambda m, x: nn.functional.layer_norm(x, (D,), eps=0.0)),
    "bits as integers": (ZERO, lambda m, x: (-x).view(torch.int64).double()),
    "a mask by weights": (
        APART,
        lambda m, x: (x @ x.mT).masked_fill(m.table > 0, -torch.inf).softmax(-1) @ x,
    ),
    "a mask by tokens": (
        PAST,
        lambda m, x: (x @ x.mT).masked_fill((x > 0).all(-1), -torch.inf).softmax(-1) @ x,
    ),
    "weights the other way": (APART, lambda m, x: causal_weights(x).mT @ x),
    "a sum over queries": (PAST, lambda m, x: causal_weights(x, -2) @ x),
    "a sum over queries, apart": (APART, lambda m, x: causal_weights(x, -2) @ x),
    "weights that are moved up": (PAST, lambda m, x: (causal_weights(x) + 0.1) @ x),
    "one head that sees all": (APART, one_head_sees_all),
    "a mask as a factor": (
        PAST,
        lambda m, x: (x @ x.mT * (1 + 9 * late().double())).softmax(-1) @ x,
    ),
    "tokens mixed by a linear map": (
        stochastic,
        lambda m, x: x + nn.functional.linear(x.mT, m.table).mT,
    ),
}


@pytest.mark.parametrize("name", TRAPS)
def test_nothing_false_follows(name: str) -> None:
    rule, forward = TRAPS[name]
    assert rule(followed(forward)).holds is None


def branching(m: Any, x: torch.Tensor) -> torch.Tensor:
    def up(y: torch.Tensor) -> torch.Tensor:
        return y + 1

    def down(y: torch.Tensor) -> torch.Tensor:
        return y - 1

    return torch.cond(x.sum() > 0, up, down, (x,))


HARD: list[Forward] = [
    lambda m, x: x + x.sum(),
    lambda m, x: x + x[x > 0].sum(),
    branching,
]


@pytest.mark.parametrize("forward", HARD)
def test_hard_modules_do_not_crash(forward: Forward) -> None:
    """They sum over the batch too, so they are no maps of single sequences in a batch."""
    with pytest.raises(InputError, match="changes the output of another by"):
        check(Made(forward), N, D, trials=2)
    report = check(Made(forward), N, D, trials=2, layout="batch_first")
    assert report.lp.verdict is not PROVED


def test_a_custom_operation_has_no_rule() -> None:
    @torch.library.custom_op("traps::softmax", mutates_args=())
    def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
        return x * torch.arange(x.shape[-1], dtype=x.dtype)

    @softmax.register_fake
    def _(x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.empty_like(x)

    found = followed(lambda m, x: softmax(x @ x.mT, -1) @ x)
    assert EQUAL(found).holds is None
    assert MOVES(found).holds is None


def test_head_size_equal_to_the_length() -> None:
    """A projected query has the shape of an attention matrix, and is none."""
    module = attention_by_name("none", seq_len=4, embed_dim=8, num_heads=2)
    assert check(module, 4, 8)["EF002"].verdict is PROVED


def test_writing_into_the_input() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.ones(D))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x += self.shift
            return x

    report = check(Writes(), N, D)
    assert report["EF001"].verdict is not REFUTED
    assert report["EF006"].verdict is not REFUTED


def test_randomness_and_state_are_refused() -> None:
    with pytest.raises(InputError, match="different outputs for the same input"):
        check(Made(lambda m, x: x + torch.randn(1)), N, D)

    def turning(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.calls = getattr(m, "calls", 0) + 1
        return x.flip(1) if m.calls > 4 else x

    with pytest.raises(InputError, match="after a run on another input"):
        check(Made(turning), N, D)


def test_ending_the_program_is_refused() -> None:
    def leaving(m: Any, x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(1)

    with pytest.raises(InputError, match="ends the program"):
        check(Made(leaving), N, D)


def test_a_contradicted_proof_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If following went wrong once, nothing of it counts."""
    module = Made(lambda m, x: x + m.positions)
    wrong = follow(nn.Identity(), call, torch.zeros(1, N, D, dtype=torch.float64))

    def believed(*_: object) -> Followed:
        return wrong

    monkeypatch.setattr("everyformer.checks.subject.follow", believed)
    report = check(module, N, D)
    assert report["EF001"].verdict is REFUTED
    assert report["EF006"].verdict is UNKNOWN
    assert "contradicts" in report["EF006"].reason


def test_one_head_and_special_tokens_are_not_covered() -> None:
    def lp(spec: AttentionSpec) -> Verdict:
        return check(Subject("spec", None, spec, N, D)).lp.verdict

    assert lp(AttentionSpec("a", gain=True)) is PROVED
    assert lp(AttentionSpec("a", gain=True, num_heads=1)) is UNKNOWN
    assert lp(AttentionSpec("a", gain=True, special_token=True)) is UNKNOWN
    assert lp(AttentionSpec("a", rotary=True)) is UNKNOWN


def test_absolute_positions_may_stand_in_for_a_query_bias() -> None:
    module = attention_by_name("ape", seq_len=N, embed_dim=D, num_heads=2, bias=False)
    assert check(module, N, D)["EF004"].verdict is UNKNOWN


def _cast(dtype: torch.dtype, m: Any, x: torch.Tensor) -> torch.Tensor:
    return x.to(dtype)


def test_outputs_of_other_kinds() -> None:
    for dtype in (torch.bfloat16, torch.bool):
        cast: Forward = functools.partial(_cast, dtype)
        trial = Trial(Made(cast), None)
        out = trial.output(torch.ones(N, D).numpy())
        assert out.dtype == "float64"


class Kinds(nn.Module):
    """Gives tensors of another kind."""

    def __init__(self, kind: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        return self.kind(x.cumsum(1))


KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x[0].to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "masked": lambda x: masked_tensor(x, x > 0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_are_not_dense_are_refused(kind: str) -> None:
    told = rf"Kinds returned a {kind} tensor\. Wrap it .* a dense one\. Give"
    with pytest.raises(InputError, match=told):
        check(Kinds(KINDS[kind]), N, D, trials=1)


def test_dense_ones_of_classes_of_their_own_are_taken() -> None:
    report = check(Kinds(lambda x: x.as_subclass(nn.Buffer).mT.mT), N, D, trials=1)
    assert report["EF001"].verdict is Verdict.REFUTED
