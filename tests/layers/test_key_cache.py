"""Caches: the outputs of one call with all tokens, in steps of any size; refusals."""

import copy
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from torch import Tensor

from everyformer.errors import InputError
from everyformer.layers import (
    GraphGain,
    HeadGain,
    KeyCache,
    RelativeAttention,
    Swin,
    T5Buckets,
    ToeplitzGain,
)
from everyformer.layers import attention as attention_module

NAMES = [
    "none", "t5", "t5-buckets", "alibi", "rotary", "shaw", "shaw-values", "deberta", "xl",
]  # fmt: skip
GAINS = {
    "none": lambda: None,
    "toeplitz": lambda: ToeplitzGain(4, 7),
    "buckets": lambda: ToeplitzGain(4, buckets=T5Buckets(8, 16, bidirectional=False)),
    "heads": lambda: HeadGain(4),
}
N = 7


def layer_with(name: str, **settings: Any) -> RelativeAttention:
    settings = {"causal": True, "max_len": N, **settings}
    layer = RelativeAttention(16, 4, encoding=name, **settings).double()
    randomise(layer)
    return layer


def in_steps(
    layer: Any,
    x: Tensor,
    steps: Sequence[int],
    cache: KeyCache,
    padded: Tensor | None = None,
) -> Tensor:
    found: list[Tensor] = []
    first = cache.length
    for step in steps:
        part = slice(first, first + step)
        mask = None if padded is None else padded[:, part]
        found.append(layer(x[:, part], cache=cache, key_padding_mask=mask))
        first += step
    return torch.cat(found, 1)


@pytest.mark.parametrize(
    ("gain", "kv_heads"), [("none", None), ("toeplitz", 2), ("buckets", 1), ("heads", None)]
)
@pytest.mark.parametrize("name", NAMES)
def test_steps_give_what_one_call_gives(name: str, gain: str, kv_heads: Any) -> None:
    """Token by token and in chunks, with a limit and growing, padded and not."""
    layer = layer_with(name, gain=GAINS[gain](), kv_heads=kv_heads)
    x, padded = tokens(2, N, 16), some_padding(2, N)
    with torch.no_grad():
        found = in_steps(layer, x, [3, 1, 2, 1], KeyCache(N))
        assert (found - layer(x)).abs().max() < 1e-12
        found = in_steps(layer, x, [1] * N, KeyCache(), padded)
        assert (found - layer(x, key_padding_mask=padded)).abs().max() < 1e-12


def test_the_past_matters() -> None:
    """Negative control: without the cache, or with other tokens in it, outputs differ."""
    layer, x = layer_with("t5"), tokens(1, N, 16)
    whole, cache = layer(x), KeyCache()
    layer(x[:, :5] + 1, cache=cache)
    assert (layer(x[:, 5:], cache=cache) - whole[:, 5:]).abs().max() > 1e-2
    assert (layer(x[:, 5:]) - whole[:, 5:]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["t5", "rotary", "xl"])
def test_gradients_through_a_cache(name: str) -> None:
    layer, x = layer_with(name, kv_heads=2), tokens(2, 7, 16).requires_grad_()
    given = [x, *layer.parameters()]
    pair = layer(x), in_steps(layer, x, [3, 1, 1, 2], KeyCache(7))
    one, two = (torch.autograd.grad((y * tokens(2, 7, 16)).sum(), given) for y in pair)
    for a, b in zip(one, two, strict=True):
        assert (a - b).abs().max() < 1e-12 * max(1.0, float(b.abs().max()))


def test_modes_may_change_on_the_way() -> None:
    """What autograd keeps is not written over, and inference tensors are not written to."""
    layer, x = layer_with("t5"), tokens(1, N, 16)
    whole, cache = layer(x), KeyCache(N)
    with torch.inference_mode():
        first = layer(x[:, :2], cache=cache)
    with torch.no_grad():
        second = layer(x[:, 2:4], cache=cache)
    third = layer(x[:, 4:6], cache=cache)
    cache.truncate(5)
    with torch.no_grad():
        fourth = layer(x[:, 5:], cache=cache)
    third.sum().backward()  # after more was cached
    found = torch.cat([first, second, third[:, :1], fourth], 1)
    assert (found - whole).abs().max() < 1e-12


def test_memory_is_reserved_once() -> None:
    layer, x, cache = layer_with("none").eval(), tokens(1, 64, 16), KeyCache(64)
    places: set[int] = set()
    with torch.no_grad():
        for i in range(64):
            layer(x[:, i : i + 1], cache=cache)
            held = cache._held  # pyright: ignore[reportPrivateUsage]
            assert held is not None
            places.add(held.keys.data_ptr())
    assert len(places) == 1
    assert cache.length == 64


def test_one_token_runs_by_the_operator() -> None:
    layer, cache = layer_with("t5", gain=True), KeyCache()
    operator = attention_module.toeplitz_attention
    patched = mock.patch.object(
        attention_module, "toeplitz_attention", side_effect=operator
    )
    with patched as spy, torch.no_grad():
        in_steps(layer, tokens(1, N, 16), [1] * 4, cache)
    assert spy.call_count == 4


def test_back_to_an_earlier_place_and_beams() -> None:
    layer, x, cache = layer_with("deberta"), tokens(3, N, 16), KeyCache()
    padded = some_padding(3, N)
    with torch.no_grad():
        in_steps(layer, x + 1, [3], copied := KeyCache(), padded)
        in_steps(layer, x, [4, 3], cache, padded)
        cache.truncate(4)
        rows = torch.tensor([2, 0, 0])
        whole = layer(x[rows], key_padding_mask=padded[rows])
        cache.reorder(rows)
        forks = copy.deepcopy(cache), copy.copy(cache)
        in_steps(layer, x[rows] + 1, [2], forks[1], padded[rows])
        forks[1].truncate(4)  # what it wrote must not be seen by the others
        for one in (cache, *forks):
            found = in_steps(layer, x[rows], [2, 5], one, padded[rows])
            assert (found - whole[:, 4:]).abs().max() < 1e-12
        copied.clear()
        assert copied.length == 0
        whole = layer(x[:1])
        assert (in_steps(layer, x[:1], [6, 5], copied) - whole).abs().max() < 1e-12


def test_a_call_that_fails_changes_nothing() -> None:
    """The table ends before the cache does; then a mask is wrong. Both can go on."""
    layer, x = layer_with("t5", max_len=5), tokens(1, N, 16)
    for grad in (False, True):
        cache = KeyCache()
        with torch.set_grad_enabled(grad):
            with pytest.raises(InputError, match="max_len=5"):
                layer(x[:, :6], cache=cache)
            assert cache.length == 0
            first = layer(x[:, :3], cache=cache)
            with pytest.raises(InputError, match="max_len=5"):
                layer(x[:, 3:6], cache=cache)
            with pytest.raises(InputError, match="does not broadcast"):
                layer(x[:, 3:5], cache=cache, attn_mask=torch.ones(2, 2, dtype=torch.bool))
            assert cache.length == 3
            found = torch.cat([first, layer(x[:, 3:5], cache=cache)], 1)
            assert (found - layer(x[:, :5])).abs().max() < 1e-12


def test_refusals() -> None:
    layer, other, x = layer_with("t5"), layer_with("t5"), tokens(2, N, 16)
    cache = KeyCache(4)
    layer(x[:, :3], cache=cache)
    with pytest.raises(InputError, match="holds 3 tokens and was made for max_len=4, so"):
        layer(x[:, 3:5], cache=cache)
    with pytest.raises(InputError, match="the keys of another layer"):
        other(x[:, 3:4], cache=cache)
    with pytest.raises(InputError, match=r"batch 1 \(the cache holds 2\)"):
        layer(x[:1, 3:4], cache=cache)
    with pytest.raises(InputError, match="cannot be cut: length=5 is not between 0 and"):
        cache.truncate(5)
    with pytest.raises(InputError, match="max_len=0 cannot be a size"):
        KeyCache(0)
    layer.float()
    with pytest.raises(InputError, match=r"dtype torch.float32 \(the cache holds torch.f"):
        layer(x[:, 3:4].float(), cache=cache)
    layer.to("meta")
    with pytest.raises(InputError, match=r"device meta \(the cache holds cpu\)"):
        layer(x[:, 3:4].to("meta", torch.float32), cache=cache)
    with pytest.raises(InputError, match=r"not causal: with later tokens, .* would change"):
        layer_with("t5", causal=False)(x, cache=KeyCache())
    window = RelativeAttention(16, 4, encoding=Swin(4, 2), causal=True)
    graph = RelativeAttention(16, 4, gain=GraphGain(4, 2), causal=True)
    for whole, name in ((window, "Swin"), (graph, "GraphGain")):
        with pytest.raises(InputError, match=f"{name} is about all tokens at once"):
            whole(x[:, :4].float(), cache=KeyCache())


@pytest.mark.unhooked
def test_what_is_not_a_length_and_what_are_not_sequences() -> None:
    """A length of 2.0 would be kept, and the next call fail."""
    layer, x, cache = layer_with("t5"), tokens(2, N, 16), KeyCache()
    layer(x[:, :3], cache=cache)
    given: Any
    for given in (2.0, "2", True, None):
        with pytest.raises(
            InputError, match=f"length={given!r} is not between 0 and the 3"
        ):
            cache.truncate(given)
    for given in ([0, 1], torch.ones(2), torch.ones(2, 2).long(), torch.ones(2).bool()):
        with pytest.raises(InputError, match="does not say which sequences go on"):
            cache.reorder(given)
    assert cache.length == 3


@pytest.mark.unhooked
def test_what_is_not_a_cache() -> None:
    past: Any = (tokens(1, 4, 2, 4), tokens(1, 4, 2, 4))
    with pytest.raises(InputError, match="cache is of type tuple"):
        layer_with("t5")(tokens(1, 2, 16), cache=past)
