"""The operator: what it refuses, and that PyTorch knows it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
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


WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "q, k, v have shapes": lambda x: x | {"q": x["q"][0]},
    "batch, heads, size": lambda x: x | {"q": x["q"][..., :4]},
    "bias has shape": lambda x: x | {"bias": x["bias"][:, :-1]},
    "gain has dtype": lambda x: x | {"gain": torch.ones(1, 17, dtype=torch.int64)},
    "key_padding has shape": lambda x: (
        x | {"key_padding": torch.zeros(2, 8, dtype=torch.bool)}
    ),
    "give one kind": lambda x: x | {"v": x["v"].float()},
    "is empty": lambda x: x | {"q": x["q"][:0], "k": x["k"][:0], "v": x["v"][:0]},
}


@pytest.mark.parametrize("text", WRONG)
def test_refusals(text: str) -> None:
    names = ("q", "k", "v", "bias", "gain")
    given: dict[str, Any] = dict(zip(names, tensors(), strict=True))
    with pytest.raises(InputError, match=text):
        toeplitz_attention(**WRONG[text](given))
