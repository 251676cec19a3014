"""Another context, groups of heads with the same keys, masks on pairs, some weights."""

from typing import Any

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers import GraphGain, HeadGain, KeyCache, RelativeAttention, Swin
from everyformer.layers.pair_masks import runs

NAMES = [
    "none", "t5", "t5-buckets", "alibi", "rotary", "shaw", "shaw-values", "deberta", "xl",
]  # fmt: skip


def layer_with(name: str, **settings: Any) -> RelativeAttention:
    settings = {"encoding": name, "gain": True, "max_len": 16, **settings}
    layer = RelativeAttention(16, 4, **settings).double()
    randomise(layer)
    return layer


@pytest.mark.parametrize("name", NAMES)
def test_a_context_is_the_first_part_of_a_sequence(name: str) -> None:
    """x attends to y alone, from place 9: as in y, two fillers, x, with a mask on pairs."""
    layer = layer_with(name, kv_heads=2)
    y, filler, x = tokens(2, 7, 16), tokens(2, 2, 16, seed=2), tokens(2, 3, 16, seed=3)
    seen = torch.zeros(3 + 9, 3 + 9, dtype=torch.bool)
    seen[9:, :7] = True
    padded = some_padding(2, 7)
    longer = torch.cat([padded, torch.zeros(2, 5, dtype=torch.bool)], 1)
    given = [x.requires_grad_(), y.requires_grad_(), *layer.parameters()]
    found = layer(x, context=y, offset=9, key_padding_mask=padded)
    all_tokens = torch.cat([y, filler, x], 1)
    wanted = layer(all_tokens, key_padding_mask=longer, attn_mask=seen)[:, 9:]
    assert (found - wanted).abs().max() < 1e-12
    one, two = (torch.autograd.grad((z * x).sum(), given) for z in (found, wanted))
    for a, b in zip(one, two, strict=True):
        assert (a - b).abs().max() < 1e-11 * max(1.0, float(b.abs().max()))
    layer.implementation = "reference"
    again = layer(x, context=y, offset=9, key_padding_mask=padded)
    assert (again - wanted).abs().max() < 1e-12


def test_the_offset_matters_where_something_looks_at_it() -> None:
    x, y = tokens(1, 3, 16), tokens(1, 5, 16, seed=2)
    for name in NAMES[1:]:
        layer = layer_with(name, gain=None)
        one, two = (layer(x, context=y, offset=offset) for offset in (0, 2))
        assert (one - two).abs().max() > 1e-6
    layer = layer_with("none", gain=None)
    assert torch.equal(layer(x, context=y), layer(x, context=y, offset=3))


def test_equals_torch() -> None:
    theirs = nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64)
    randomise(theirs)
    ours = RelativeAttention(16, 4, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x, y, padded = tokens(2, 3, 16), tokens(2, 7, 16, seed=2), some_padding(2, 7)
    added = tokens(3, 7, seed=3)
    given: dict[str, Any] = {"average_attn_weights": False}
    hidden = torch.zeros(2, 7).double().masked_fill(padded, -torch.inf)
    expected, weights = theirs(x, y, y, hidden, attn_mask=added, **given)
    out, own = ours(
        x, context=y, key_padding_mask=padded, attn_mask=added, need_weights=True
    )
    assert (out - expected).abs().max() < 1e-14
    assert (own - weights).abs().max() < 1e-15
    assert (ours(x, context=y) - theirs(x, y, y)[0]).abs().max() < 1e-14


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_groups_of_heads_are_heads_with_equal_keys(name: str, kv_heads: int) -> None:
    grouped, plain = layer_with(name, kv_heads=kv_heads), layer_with(name)
    q, k, v = grouped.in_proj_weight.split([16, 4 * kv_heads, 4 * kv_heads])
    b = grouped.in_proj_bias
    assert b is not None
    b_q, b_k, b_v = b.split([16, 4 * kv_heads, 4 * kv_heads])

    def repeated(rows: Tensor) -> Tensor:
        each = rows.unflatten(0, (kv_heads, 4))
        return each.repeat_interleave(4 // kv_heads, 0).flatten(0, 1)

    state = {
        **grouped.state_dict(),
        "in_proj_weight": torch.cat([q, repeated(k), repeated(v)]),
        "in_proj_bias": torch.cat([b_q, repeated(b_k), repeated(b_v)]),
    }
    plain.load_state_dict(state)
    x, padded = tokens(2, 9, 16), some_padding(2, 9)
    for causal in (False, True):
        grouped.causal = plain.causal = causal
        pair = [layer(x, key_padding_mask=padded) for layer in (grouped, plain)]
        assert (pair[0] - pair[1]).abs().max() < 1e-12
        one, two = (
            torch.autograd.grad(y.square().sum(), layer.in_proj_weight)[0]
            for y, layer in zip(pair, (grouped, plain), strict=True)
        )
        assert (one[:16] - two[:16]).abs().max() < 1e-10
        summed = two[16:32].unflatten(0, (kv_heads, 4 // kv_heads, 4)).sum(1)
        assert (one[16 : 16 + 4 * kv_heads] - summed.flatten(0, 1)).abs().max() < 1e-10


def test_old_checkpoints_load() -> None:
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    for kv_heads in (None, 4):
        RelativeAttention(16, 4, kv_heads=kv_heads).load_state_dict(theirs.state_dict())
    shared = RelativeAttention(16, 4, kv_heads=1)
    assert shared.in_proj_weight.shape == (16 + 4 + 4, 16)
    assert sorted(shared.state_dict()) == sorted(theirs.state_dict())


class TestMasks:
    @pytest.mark.parametrize("name", ["none", "t5", "xl"])
    def test_shapes_that_broadcast(self, name: str) -> None:
        """Bools hide as numbers at -inf do; padding is a mask with one row."""
        layer = layer_with(name, causal=True)
        x, padded = tokens(2, 3, 7, 16), some_padding(6, 7).view(2, 3, 7)
        wanted = layer(x, key_padding_mask=padded)
        seen = ~padded[:, :, None, None, :]
        for mask in (seen, torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)):
            assert (layer(x, attn_mask=mask) - wanted).abs().max() < 1e-13
        past = torch.ones(7, 7, dtype=torch.bool).tril()
        causal = layer(x)
        layer.causal = False
        for mask in (past, past[None], past.expand(4, 7, 7), past.expand(2, 3, 4, 7, 7)):
            assert (layer(x, attn_mask=mask) - causal).abs().max() < 1e-13
        own = tokens(3, 1, 7, 7, seed=4)
        found = layer(x, attn_mask=own)
        for i in range(3):
            assert (found[:, i] - layer(x[:, i], attn_mask=own[i])).abs().max() < 1e-13
        assert (found[:, 0] - found[:, 1]).abs().max() > 1e-3

    def test_without_keys_only_the_output_bias_remains(self) -> None:
        layer, x = layer_with("t5"), tokens(1, 3, 16).requires_grad_()
        seen = torch.ones(3, 3, dtype=torch.bool)
        seen[1] = False
        lowest = torch.finfo(torch.float64).min
        for mask in (seen, torch.zeros(3, 3).masked_fill(~seen, -torch.inf)):
            out = layer(x, attn_mask=mask)
            assert torch.equal(out[0, 1], layer.out_proj.bias)
            assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()
        # A float64 mask at its lowest number is -inf in float32.
        low = torch.zeros(3, 3, dtype=torch.float64).masked_fill(~seen, lowest)
        out = layer.float()(x.float(), attn_mask=low)
        assert torch.equal(out[0, 1], layer.out_proj.bias)

    def test_with_a_cache_a_mask_is_about_all_keys(self) -> None:
        layer, x = layer_with("t5", causal=True), tokens(2, 8, 16)
        mask = tokens(4, 8, 8, seed=5)
        cache = KeyCache()
        steps = [
            layer(x[:, a:b], cache=cache, attn_mask=mask[:, a:b, :b])
            for a, b in ((0, 3), (3, 4), (4, 8))
        ]
        assert (torch.cat(steps, 1) - layer(x, attn_mask=mask)).abs().max() < 1e-12

    def test_refusals(self) -> None:
        layer, x = layer_with("t5"), tokens(2, 5, 16)
        for shape in ((4, 5), (5, 4), (3, 5, 5), (1, 1, 2, 4, 5, 5)):
            with pytest.raises(InputError, match=r"broadcast to .* = \(2, 4, 5, 5\)"):
                layer(x, attn_mask=torch.ones(shape))
        with pytest.raises(InputError, match=r"dtype torch.int64; give bool, True where"):
            layer(x, attn_mask=torch.ones(5, 5).long())
        with pytest.raises(InputError, match=r"requires gradients, .*pairwise_attention"):
            layer(x, attn_mask=torch.ones(5, 5).requires_grad_())


class TestSomeWeights:
    @pytest.mark.parametrize("name", ["none", "t5", "rotary", "shaw-values", "xl"])
    @pytest.mark.parametrize("causal", [False, True])
    def test_are_rows_of_all_weights(self, name: str, causal: bool) -> None:
        layer = layer_with(name, causal=causal, kv_heads=2)
        x, mask = tokens(2, 9, 16), tokens(9, 9, seed=2)
        padded = some_padding(2, 9)
        for given in ({}, {"attn_mask": mask, "key_padding_mask": padded}):
            out, all_of_them = layer(x, need_weights=True, **given)
            for rows, wanted in (
                (slice(2, 5), [2, 3, 4]),
                (slice(None, None, 4), [0, 4, 8]),
                (torch.tensor([7, 8, 1, -9]), [7, 8, 1, 0]),
                (slice(3, 3), []),
            ):
                again, some = layer(x, need_weights=rows, **given)
                assert (again - out).abs().max() < 1e-12
                assert some.shape == (2, 4, len(wanted), 9)
                assert torch.equal(some, all_of_them[:, :, wanted]) or (
                    (some - all_of_them[:, :, wanted]).abs().max() < 1e-14
                )

    def test_take_memory_for_these_rows_alone(self) -> None:
        """A million tokens would need 4 TB of weights; one row has 16 MB."""
        layer = RelativeAttention(2, 1, encoding="alibi", implementation="auto")
        x = torch.zeros(300_000, 2)
        heads = layer._project(x, None)  # pyright: ignore[reportPrivateUsage]
        with torch.no_grad():
            some = layer._some_weights(heads, [150_000])  # pyright: ignore[reportPrivateUsage]
        assert some.shape == (1, 1, 1, 300_000)
        assert abs(float(some.sum()) - 1) < 1e-4

    def test_runs(self) -> None:
        assert runs([]) == []
        assert runs([4]) == [slice(4, 5)]
        assert runs([4, 3, 4, 5]) == [slice(4, 5), slice(3, 6)]

    def test_refusals(self) -> None:
        layer, x = layer_with("t5"), tokens(1, 5, 16)
        with pytest.raises(InputError, match=r"query 5, but there are 5: .* from -5 to 4"):
            layer(x, need_weights=torch.tensor([1, 5]))
        with pytest.raises(InputError, match="does not name queries"):
            layer(x, need_weights=torch.ones(5, dtype=torch.bool))


def test_keys_of_a_context_are_made_once() -> None:
    layer, x, y = layer_with("rotary"), tokens(2, 3, 16), tokens(2, 7, 16, seed=2)
    cache = KeyCache()
    for i in range(3):
        found = layer(x[:, i : i + 1], context=y, offset=i, cache=cache)
        wanted = layer(x, context=y, offset=0)[:, i : i + 1]
        assert (found - wanted).abs().max() < 1e-12
    assert cache.length == 7
    with pytest.raises(InputError, match="holds the keys of another context, or it was"):
        layer(x, context=y.clone(), offset=0, cache=cache)
    y += 1
    with pytest.raises(InputError, match="another context, or it was changed"):
        layer(x, context=y, offset=0, cache=cache)
    causal, own = layer_with("rotary", causal=True), KeyCache()
    causal(x, cache=own)
    causal.causal = False
    with pytest.raises(InputError, match="holds the keys of tokens"):
        causal(x, context=y, offset=0, cache=own)
    causal.causal = True
    with pytest.raises(InputError, match="of another layer"):
        causal(x, cache=cache)


def test_refusals() -> None:
    x, y = tokens(2, 3, 16), tokens(2, 7, 16)
    with pytest.raises(InputError, match=r"T5, ToeplitzGain looks at i - j, .* offset="):
        layer_with("t5")(x, context=y)
    with pytest.raises(InputError, match=r"the layer is causal, but no token"):
        layer_with("t5", causal=True)(x, context=y, offset=0)
    with pytest.raises(InputError, match="offset=1 was given without a context"):
        layer_with("t5")(x, offset=1)
    with pytest.raises(InputError, match=r"max_len=16 and has no entry for offsets beyond"):
        layer_with("t5")(x, context=y, offset=14)
    for settings in ({"encoding": Swin(4, 2)}, {"gain": GraphGain(4, 2)}):
        layer = layer_with("none", **settings)
        with pytest.raises(InputError, match="there can be neither a context nor a cache"):
            layer(x, context=y, offset=0)
    layer_with("none", gain=HeadGain(4))(x, context=y)  # looks at no places
    with pytest.raises(InputError, match=r"num_heads=4 is not a multiple of kv_heads=3"):
        RelativeAttention(16, 4, kv_heads=3)
    with pytest.raises(InputError, match="kv_heads=0 cannot be a size"):
        RelativeAttention(16, 4, kv_heads=0)


@pytest.mark.unhooked
def test_contexts_of_another_shape() -> None:
    x, y = tokens(2, 3, 16), tokens(2, 7, 16)
    padded = torch.zeros(2, 3, dtype=torch.bool)
    layer = layer_with("none")
    with pytest.raises(InputError, match=r"batch \(2,\), the context \(1,\)"):
        layer(x, context=y[:1], offset=0)
    with pytest.raises(InputError, match=r"context has shape \(2, 7, 8\)"):
        layer(x, context=y[..., :8], offset=0)
    with pytest.raises(InputError, match=r"give one bool per token, \(2, 7\)"):
        layer(x, context=y, offset=0, key_padding_mask=padded)
    with pytest.raises(InputError, match=r"offset=0.5 is not a place"):
        layer(x, context=y, offset=0.5)
    with pytest.raises(InputError, match=r"need_weights=3 does not name queries"):
        layer(x, need_weights=3)
