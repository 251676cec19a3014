"""The pattern as a mask: what `SparseAttention` computes, at every length."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from everyformer.errors import InputError
from everyformer.layers import masked_attention
from everyformer.layers.masked_attention import MaskedAttention
from everyformer.layers.sparse_attention import Configuration, SparseAttention
from everyformer.patterns import Pattern, fixed, from_masks, random, star, strided


@pytest.mark.parametrize(
    ("pattern", "way"),
    [
        (strided(12, 4).causal_part(), "union"),
        (fixed(12, 4), "multihead"),
        (strided(12, 3).causal_part(), "sequential"),
        (star(12, 2), "union"),
        (random(12, 3).causal_part(), "union"),
    ],
)
def test_it_computes_what_sparse_attention_does(
    pattern: Pattern, way: Configuration
) -> None:
    torch.manual_seed(1)
    sparse = SparseAttention(
        16, 4, pattern, configuration=way, layer_index=1, dtype=torch.float64
    )
    masked = MaskedAttention(
        16, 4, pattern, configuration=way, layer_index=1, dtype=torch.float64
    )
    masked.load_state_dict(sparse.state_dict())
    x = torch.randn(3, 12, 16, dtype=torch.float64)
    torch.testing.assert_close(masked(x), sparse(x), atol=1e-12, rtol=0)
    padding = torch.arange(12) >= torch.tensor([[12], [7], [2]])
    seen = masked(x, key_padding_mask=padding)
    wanted = sparse(x, key_padding_mask=padding)
    torch.testing.assert_close(seen[~padding], wanted[~padding], atol=1e-12, rtol=0)
    assert seen.isfinite().all(), "padding that sees nobody is still a number"


def test_a_shorter_sequence_is_a_padded_one() -> None:
    """The leading part of the pattern: a bucket changes nothing."""
    layer = MaskedAttention(8, 2, fixed(12, 3), configuration="multihead")
    x = torch.randn(2, 7, 8)
    padded = torch.cat([x, torch.randn(2, 5, 8)], 1)
    hidden = torch.arange(12).expand(2, 12) >= 7
    found = layer(padded, key_padding_mask=hidden)[:, :7]
    torch.testing.assert_close(layer(x), found)


def test_no_kernel_of_cudnn_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[bool] = []

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return functional.scaled_dot_product_attention(*args, **kwargs)

    monkeypatch.setattr(masked_attention, "scaled_dot_product_attention", watched)
    MaskedAttention(8, 2, star(12, 2))(torch.zeros(12, 8))
    assert allowed == [False]
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("n", [64, 192, 256])
def test_gradients_are_numbers_where_all_scores_are_far_below_0(
    n: int, compiled: bool
) -> None:
    """The only score of a token that hears itself alone may drift to any value."""
    layer = MaskedAttention(
        128, 4, fixed(256, 64).causal_part(), configuration="multihead", device="cuda"
    )
    assert layer.in_proj_bias is not None
    with torch.no_grad():
        query, key, _ = layer.in_proj_bias.chunk(3)
        query.view(4, 32)[:, 0], key.view(4, 32)[:, 0] = 1.0, -120 * 32**0.5
    if compiled:
        layer.compile(dynamic=False, fullgraph=True)
    x = torch.randn(2, n, 128, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        out = layer(x)
    out.float().square().sum().backward()
    assert x.grad is not None
    found = [x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]
    assert all(bool(y.isfinite().all()) for y in found)
    assert any(bool(y.any()) for y in found)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="13 tokens, and the pattern is for at most n=12"):
        MaskedAttention(8, 2, star(12, 2))(torch.zeros(13, 8))
    with pytest.raises(InputError, match="num_heads=3 cannot be shared equally by the p=2"):
        MaskedAttention(6, 3, fixed(12, 3), configuration="multihead")
    others = torch.ones(4, 4, dtype=torch.bool).fill_diagonal_(False)
    with pytest.raises(InputError, match=r"token 1 \(1-based\) does not attend to itself"):
        MaskedAttention(8, 2, from_masks(others.numpy()))


@pytest.mark.unhooked
def test_what_has_another_shape_or_type_is_refused() -> None:
    layer: Any = MaskedAttention(8, 2, star(12, 2).causal_part())
    for x in (torch.zeros(8), torch.tensor(0.0)):
        with pytest.raises(InputError, match=r"needs \(\*batch, n, 8\)"):
            layer(x)
    with pytest.raises(InputError, match=r"cache is of type str\. Give"):
        layer(torch.zeros(12, 8), cache="a")
    made: Any = star
    with pytest.raises(InputError, match=r"star.* is not a pattern\. Give that of"):
        MaskedAttention(8, 2, made)


@pytest.mark.compile
def test_layers_and_arms_share_one_compiled_graph() -> None:
    """The mask is data: no pattern, head group or layer compiles anew."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    arms: list[tuple[Pattern, Configuration]] = [
        (star(8, 2), "union"), (strided(8, 2), "multihead"),
    ]  # fmt: skip
    for pattern, way in arms:
        for layer in range(2):
            attention = MaskedAttention(
                8, 2, pattern.causal_part(), configuration=way, layer_index=layer
            )
            attention.compile(backend="aot_eager", dynamic=False, fullgraph=True)
            attention(torch.zeros(2, 8, 8)).sum().backward()
    assert counters["stats"]["unique_graphs"] == before + 1
