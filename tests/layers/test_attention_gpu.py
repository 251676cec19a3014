"""Layers on a GPU: groups of heads, masks, caches and dropout by the kernels."""

import copy
from typing import Any

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from torch import Tensor

from everyformer import patterns
from everyformer.layers import KeyCache, RelativeAttention, SparseAttention

pytestmark = pytest.mark.gpu

N = 150


def pair(name: str, **settings: Any) -> tuple[RelativeAttention, RelativeAttention]:
    """A layer in float32 on the GPU, and the same in float64 on the CPU."""
    given: dict[str, Any] = {"gain": True, "max_len": N, "kv_heads": 2, **settings}
    exact = RelativeAttention(128, 4, encoding=name, **given).double()
    randomise(exact, size=0.1)
    return copy.deepcopy(exact).float().cuda(), exact


def near(found: Tensor, exact: Tensor) -> None:
    exact = exact.detach()
    gap = (found.detach().cpu().double() - exact).abs().max()
    assert gap < 2e-3 * max(1.0, float(exact.abs().max()))


@pytest.mark.parametrize("name", ["none", "t5", "rotary", "alibi", "deberta", "xl"])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_and_groups(name: str, causal: bool) -> None:
    fast, exact = pair(name, causal=causal)
    x, padded, mask = tokens(2, N, 128), some_padding(2, N), tokens(4, N, N, seed=3)
    out = exact(x, key_padding_mask=padded, attn_mask=mask)
    found = fast(
        x.float().cuda(), key_padding_mask=padded.cuda(), attn_mask=mask.float().cuda()
    )
    near(found, out)
    one = torch.autograd.grad(found.square().sum(), list(fast.parameters()))
    two = torch.autograd.grad(out.square().sum(), list(exact.parameters()))
    for a, b in zip(one, two, strict=True):
        near(a, b)


@pytest.mark.parametrize("name", ["none", "t5", "rotary", "alibi", "deberta", "xl"])
def test_caches(name: str) -> None:
    fast, exact = pair(name, causal=True)
    x, cache, found = tokens(2, N, 128), KeyCache(N), list[Tensor]()
    with torch.no_grad():
        for step in (100, 1, 1, 40, *[1] * 8):
            part = x[:, cache.length : cache.length + step].float().cuda()
            found.append(fast(part, cache=cache))
        near(torch.cat(found, 1), exact(x))


def test_a_context() -> None:
    fast, exact = pair("t5")
    x, y = tokens(2, 40, 128), tokens(2, 100, 128, seed=2)
    given = x.float().cuda(), y.float().cuda()
    near(fast(given[0], context=given[1], offset=30), exact(x, context=y, offset=30))


def test_the_operator_drops_what_plain_torch_drops() -> None:
    fast, _ = pair("t5", dropout=0.3)
    x = tokens(2, N, 128).float().cuda()
    torch.manual_seed(0)
    out, weights = fast(x, need_weights=True)
    torch.manual_seed(0)
    again, some = fast(x, need_weights=slice(60, 64))
    near(again, out.cpu().double())
    assert torch.equal(some == 0, weights[:, :, 60:64] == 0)
    assert 0.2 < float((weights == 0).double().mean()) < 0.4


def test_sparse_layers() -> None:
    pattern = patterns.strided(N, 12).causal_part()
    exact = SparseAttention(128, 4, pattern, kv_heads=2, configuration="union").double()
    randomise(exact, size=0.1)
    fast = copy.deepcopy(exact).float().cuda()
    x, cache = tokens(2, N, 128), KeyCache()
    near(fast(x.float().cuda()), exact(x))
    with torch.no_grad():
        found = [
            fast(x[:, cache.length : cache.length + step].float().cuda(), cache=cache)
            for step in (100, 1, 49)
        ]
    near(torch.cat(found, 1), exact(x))
    fast.dropout = 0.5
    out = fast.train()(x.float().cuda())
    assert torch.autograd.grad(out.sum(), fast.in_proj_weight)[0].isfinite().all()
