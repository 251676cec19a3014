"""The reference against the definition, SDPA and finite differences."""

import math

import pytest
import torch
from tests.ops.cases import EXPLICIT, TINY, Case, expected, inputs
from tests.ops.references import toeplitz_attention_reference, toeplitz_logits_reference
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from everyformer.errors import InputError
from everyformer.ops.toeplitz_attention.reference import toeplitz


def test_offset_is_query_minus_key() -> None:
    """n = 2, where a flipped table is visible at once: offsets -1, 0, 1."""
    matrix = toeplitz(torch.tensor([[-1.0, 0.0, 1.0]]), 2, 2)
    assert torch.equal(matrix, torch.tensor([[[0.0, -1.0], [1.0, 0.0]]]))


@pytest.mark.parametrize(("n_q", "n_k"), [(1, 1), (3, 5), (5, 3), (1, 4), (4, 1)])
def test_toeplitz_by_definition(n_q: int, n_k: int) -> None:
    vector = torch.randn(2, n_q + n_k - 1)
    matrix = toeplitz(vector, n_q, n_k)
    for i in range(n_q):
        for j in range(n_k):
            assert torch.equal(matrix[:, i, j], vector[:, i - j + n_k - 1])


def test_toeplitz_refuses_a_wrong_length() -> None:
    with pytest.raises(
        InputError, match=r"7 entries .* 3 queries and 4 keys have 6 offsets"
    ):
        toeplitz(torch.zeros(1, 7), 3, 4)


@pytest.mark.parametrize("causal", [False, True])
def test_by_definition(causal: bool) -> None:
    """Equation 8 of Luo et al. entry by entry, in Python floats, with padding."""
    given = inputs(Case(batch=2, heads=2, n_q=4, n_k=3, d=2, padding="some", seed=4))
    assert given.bias is not None
    assert given.gain is not None
    assert given.key_padding is not None
    out = toeplitz_attention_reference(
        given.q, given.k, given.v, given.bias, given.gain,
        causal=causal, scale=0.3, key_padding=given.key_padding,
    )  # fmt: skip
    for b in range(2):
        for h in range(2):
            for i in range(4):
                seen = [
                    j
                    for j in range(3)
                    if not given.key_padding[b, j] and not (causal and j > i)
                ]
                score = {
                    j: math.exp(
                        0.3 * float(given.q[b, h, i] @ given.k[b, h, j])
                        + float(given.bias[h, i - j + 2])
                    )
                    for j in seen
                }
                total = sum(score.values())
                want = torch.zeros(2, dtype=torch.float64)
                for j in seen:
                    share = score[j] / total
                    want += share * given.gain[h, i - j + 2] * given.v[b, h, j]
                torch.testing.assert_close(out[b, h, i], want, atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize(("n_q", "n_k"), [(6, 6), (4, 7), (7, 4)])
@pytest.mark.parametrize("causal", [False, True])
def test_unit_gain_and_zero_bias_equal_sdpa(n_q: int, n_k: int, causal: bool) -> None:
    given = inputs(Case(n_q=n_q, n_k=n_k, bias="none", gain="none"))
    zeros = torch.zeros(3, n_q + n_k - 1, dtype=torch.float64)
    want = scaled_dot_product_attention(given.q, given.k, given.v, is_causal=causal)
    out = toeplitz_attention_reference(
        given.q, given.k, given.v, zeros, zeros + 1, causal=causal
    )
    torch.testing.assert_close(out, want, atol=1e-14, rtol=1e-14)


def test_equal_tokens() -> None:
    """With gain 1 no bias tells equal tokens apart; a strictly triangular gain does."""
    n = 6
    tokens = torch.randn(1, 2, 1, 4, dtype=torch.float64).expand(1, 2, n, 4)
    bias = 10 * torch.randn(2, 2 * n - 1, dtype=torch.float64)
    rows = toeplitz_attention_reference(tokens, tokens, tokens, bias, torch.ones_like(bias))
    torch.testing.assert_close(rows, tokens, atol=1e-14, rtol=0)
    past = (torch.arange(2 * n - 1) >= n).to(torch.float64)[None]
    rows = toeplitz_attention_reference(tokens, tokens, tokens, None, past)
    distances = torch.cdist(rows, rows) + torch.eye(n, dtype=torch.float64)
    assert float(distances.min()) > 0.01


@pytest.mark.parametrize("case", EXPLICIT, ids=str)
def test_no_nan_and_zero_for_queries_without_keys(case: Case) -> None:
    given = inputs(case)
    results = expected(given)
    empty = results["lse"] == -math.inf
    for name, result in results.items():
        assert not result.isnan().any(), name
    assert torch.all(results["out"][empty] == 0)
    assert torch.all(results["dq"][empty] == 0)
    if case.padding == "all":
        assert empty[-1].all()
        assert torch.all(results["dk"][-1] == 0)
        assert torch.all(results["dv"][-1] == 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_has_float32_statistics(dtype: torch.dtype) -> None:
    given = inputs(Case(), dtype)
    assert toeplitz_logits_reference(given.q, given.k, given.bias).dtype == torch.float32
    out = toeplitz_attention_reference(given.q, given.k, given.v, given.bias, given.gain)
    single = given.to(torch.float32)
    want = toeplitz_attention_reference(
        single.q, single.k, single.v, single.bias, single.gain
    )
    assert out.dtype == dtype
    assert torch.equal(out, want.to(dtype))


@pytest.mark.parametrize("case", TINY, ids=str)
def test_gradients_are_those_of_finite_differences(case: Case) -> None:
    given = inputs(case)

    def attend(*x: Tensor) -> Tensor:
        return toeplitz_attention_reference(
            *x, causal=given.causal, scale=given.scale, key_padding=given.key_padding
        )

    leaves = [
        x.clone().requires_grad_()
        for x in (given.q, given.k, given.v, given.bias, given.gain)
        if x is not None
    ]
    assert torch.autograd.gradcheck(attend, leaves)
