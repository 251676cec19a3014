"""The operator: what it refuses, and that PyTorch knows it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from everyformer.errors import InputError
from everyformer.ops import toeplitz_attention


def tensors(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(2, 2, 9, 8)] * 3 + [(2, 17), (1, 17)]
    return [torch.randn(*shape, dtype=dtype).requires_grad_() for shape in shapes]


def test_checkpointing_and_autocast() -> None:
    x = tensors(torch.float32)
    plain = toeplitz_attention(*x)
    again = checkpoint(toeplitz_attention, *x, use_reentrant=False)
    assert isinstance(again, torch.Tensor)
    assert torch.equal(plain, again)
    one, two = (torch.autograd.grad(out.sum(), x) for out in (plain, again))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = toeplitz_attention(*x)
    assert out.dtype == torch.bfloat16
    assert (out - plain).abs().max() < 0.1


def long(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


Given = dict[str, Any]
WRONG: dict[str, Callable[[Given], Given]] = {
    "q, k, v have shapes": lambda x: {"q": x["q"][0]},
    "batch and size must be the same": lambda x: {"q": x["q"][..., :4]},
    r"q has 2 heads, k has 3; heads of keys must divide": lambda x: {
        "k": x["k"][:, [0, 1, 1]], "v": x["v"][:, [0, 1, 1]]
    },
    r"bias has shape \(2, 16\); n_q \+ n_k - 1 = 17": lambda x: {
        "bias": x["bias"][:, :-1]
    },
    "gain has dtype": lambda _: {"gain": torch.ones(1, 17, dtype=torch.int64)},
    "key_padding has shape": lambda _: {"key_padding": torch.zeros(2, 8) > 0},
    "give one kind": lambda x: {"v": x["v"].float()},
    "is empty": lambda x: {name: x[name][:0] for name in "qkv"},
    r"attn_mask has shape \(2, 1, 8, 9\)": lambda _: {
        "attn_mask": torch.ones(2, 1, 8, 9) > 0
    },
    r"attn_mask has shape \(1, 1, 1, 1, 9\)": lambda _: {
        "attn_mask": torch.ones(1, 1, 1, 1, 9)
    },
    r"attn_mask has dtype torch.int64; give bool": lambda _: {
        "attn_mask": torch.ones(9, 9, dtype=torch.int64)
    },
    "give it as bias, or use everyformer.ops.pairwise_attention": lambda _: {
        "attn_mask": torch.ones(9, 9, requires_grad=True)
    },
    "b = 2, n_q = 9, n_k = 9, offset = 0; use b = 1": lambda _: {"sequences": long(0, 9)},
    "n_q = 9, n_k = 9, offset = 2; use": lambda x: {
        "sequences": long(0, 9), "offset": 2, **{name: x[name][:1] for name in "qkv"}
    },
    "sequences goes from 0 to 8; it must grow from 0 to n = 9": lambda _: {
        "sequences": long(0, 8)
    },
    "from 0 to 9 and not always upwards": lambda _: {"sequences": long(0, 5, 4, 9)},
    "sequences has shape .* and dtype torch.float32": lambda _: {
        "sequences": torch.zeros(3)
    },
    "dropout is 1.5; give a probability": lambda _: {"dropout": 1.5},
    "dropout is nan": lambda _: {"dropout": float("nan")},
    r"seed has shape \(2,\) and dtype torch.int64": lambda _: {"seed": long(1, 2)},
    "offset is 1.5; give a whole number": lambda _: {"offset": 1.5},
    "tensors lie on": lambda _: {"attn_mask": torch.ones(9, 9, device="meta") > 0},
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_refusals(text: str) -> None:
    names = ("q", "k", "v", "bias", "gain")
    given: Given = dict(zip(names, tensors(), strict=True))
    with pytest.raises(InputError, match=text):
        toeplitz_attention(**given | WRONG[text](given))


def test_all_reasons_at_once() -> None:
    q, k, v, *_ = tensors()
    wrong = {"attn_mask": torch.ones(3, 3), "dropout": 2.0, "key_padding": torch.ones(2, 9)}
    with pytest.raises(InputError) as refused:
        toeplitz_attention(q, k, v, **wrong)  # type: ignore[arg-type]
    assert all(text in str(refused.value) for text in ("attn_mask", "dropout", "padding"))


def test_a_mask_needs_no_gradient_where_none_is_recorded() -> None:
    q, k, v, *_ = tensors()
    mask = torch.zeros(9, 9, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(
            toeplitz_attention(q, k, v, attn_mask=mask), toeplitz_attention(q, k, v)
        )


@pytest.mark.parametrize("group", [1, 2])
def test_a_cache_gives_the_same_tokens(group: int) -> None:
    """One query after the other with the keys so far, against all at once."""
    q, k, v, bias, gain = tensors()
    k, v = k[:, ::group], v[:, ::group]
    whole = toeplitz_attention(q, k, v, bias, gain, causal=True)
    for i in range(9):
        n_k = i + 1
        seen = slice(8, 8 + n_k)  # offsets from 0 to i, query i being the first
        vectors = [x[:, seen] for x in (bias, gain)]
        now = q[:, :, i : i + 1], k[:, :, :n_k], v[:, :, :n_k]
        one = toeplitz_attention(*now, *vectors, causal=True, offset=i)
        assert (one - whole[:, :, i : i + 1]).abs().max() < 1e-14
    last = toeplitz_attention(
        q[:, :, 6:], k, v, bias[:, 6:], gain[:, 6:], causal=True, offset=6
    )
    assert (last - whole[:, :, 6:]).abs().max() < 1e-14


def test_packed_sequences_are_those_alone() -> None:
    q, k, v, bias, gain = tensors()
    q, k, v = (x[:1] for x in (q, k, v))
    found = toeplitz_attention(q, k, v, bias, gain, sequences=long(0, 4, 9), causal=True)
    for part in (slice(0, 4), slice(4, 9)):
        n = part.stop - part.start
        vectors = [x[:, 9 - n : 8 + n] for x in (bias, gain)]
        alone = toeplitz_attention(
            *(x[:, :, part] for x in (q, k, v)), *vectors, causal=True
        )
        assert (found[:, :, part] - alone).abs().max() < 1e-14


def test_masks_of_sdpa() -> None:
    q, k, v, *_ = tensors()
    mask = torch.rand(2, 1, 9, 9) < 0.5
    mask[..., 0] = True
    for given in (mask, mask[0, 0], mask.double().log()):
        wanted = scaled_dot_product_attention(q, k, v, attn_mask=given)
        found = toeplitz_attention(q, k, v, attn_mask=given)
        assert (found - wanted).abs().max() < 1e-14


def test_a_seed_is_drawn_from_torchs_generator() -> None:
    q, k, v, *_ = tensors()
    runs: list[torch.Tensor] = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        runs.append(toeplitz_attention(q, k, v, dropout=0.5))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.equal(
        toeplitz_attention(q, k, v, seed=long(3)), toeplitz_attention(q, k, v)
    )


def test_checkpointing_drops_the_same_weights() -> None:
    x = tensors()
    outs: list[Any] = []
    for again in (False, True):
        torch.manual_seed(0)
        called = partial(toeplitz_attention, dropout=0.5)
        out: Any = checkpoint(called, *x, use_reentrant=False) if again else called(*x)
        outs.append([out, *torch.autograd.grad(out.sum(), x)])
    assert all(torch.equal(a, b) for a, b in zip(*outs, strict=True))


def test_nan_in_a_vector_reaches_those_who_see_it() -> None:
    """And nobody else: an entry behind a mask is never used."""
    q, k, v, bias, gain = (x.detach() for x in tensors())
    bias = bias.clone()
    bias[0, 8 - 2] = torch.nan  # query i sees key i + 2
    out = toeplitz_attention(q, k, v, bias, gain)
    assert out[:, 0, :7].isnan().all()
    assert out[:, 0, 7:].isfinite().all()
    assert out[:, 1].isfinite().all()
    padded = torch.ones(2, 9) > 0
    padded[:, :2] = False
    mask = torch.ones(9, 9).tril() > 0
    for hidden in ({"causal": True}, {"key_padding": padded}, {"attn_mask": mask}):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, bias, gain)]
        out = toeplitz_attention(*leaves, **hidden)  # type: ignore[arg-type]
        assert out.isfinite().all()
        found = torch.autograd.grad(out.sum(), leaves)
        assert all(x.isfinite().all() for x in found)


def test_a_single_key_has_no_slope_by_scores() -> None:
    """Its weight is 1: exactly 0, although the output is rounded to bfloat16."""
    torch.manual_seed(0)
    shapes = [(1, 2, 5, 16), (1, 2, 1, 16), (1, 2, 1, 16)]
    half = [torch.randn(*shape).bfloat16().requires_grad_() for shape in shapes]
    bias, gain = (torch.randn(2, 5, requires_grad=True) for _ in "bc")
    leaves = [*half, bias, gain]
    out = toeplitz_attention(*leaves)
    dq, dk, dv, dbias, dgain = torch.autograd.grad(out.sin().sum(), leaves)
    assert all(torch.all(x == 0) for x in (dq, dk, dbias))
    assert all(x.abs().max() > 0 for x in (dv, dgain))
