"""The sparse layer: configurations, lengths, padding, copies, refusals, training."""

import copy
import pickle
from typing import Any
from unittest import mock

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from torch import Tensor, nn
from torch._dynamo import lookup_backend

from everyformer import patterns
from everyformer.errors import InputError
from everyformer.layers import KeyCache, RelativeAttention, SparseAttention, some_queries
from everyformer.layers import sparse_attention as module
from everyformer.layers.sparse_attention import CONFIGURATIONS, Configuration
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.patterns import Part, Pattern

FAMILIES = {
    "strided": patterns.strided(9, 3),
    "fixed": patterns.fixed(9, 4, repaired=True),
    "axial": patterns.axial(3, 3),
    "star": patterns.star(9),
    "bigbird": patterns.big_bird(9, 3, 1, 1),
    "dilated": patterns.dilated(9, 1, (1, 2)),
}


def made(pattern: Pattern, configuration: Configuration, index: int = 0) -> SparseAttention:
    layer = SparseAttention(
        8, 4, pattern, configuration=configuration, layer_index=index
    ).double()
    randomise(layer)
    return layer


def plain(layer: SparseAttention, x: Tensor, parts: list[Part], padded: Tensor) -> Tensor:
    """From the definition: head i of token k looks at the tokens of A_k of its part."""
    W, c, d = layer.in_proj_weight, layer.in_proj_bias, layer.head_dim
    assert c is not None
    rows: list[Tensor] = []
    for b in range(x.shape[0]):
        q, k, v = (x[b] @ W.T + c).chunk(3, -1)
        for t in range(x.shape[1]):
            heads: list[Tensor] = []
            for i in range(layer.num_heads):
                part = parts[i * len(parts) // layer.num_heads]
                heard = [j for j in part.heard(t).tolist() if not padded[b, j]]
                cut = slice(i * d, (i + 1) * d)
                if not heard:
                    heads.append(x.new_zeros(d))
                    continue
                logits = k[heard][:, cut] @ q[t, cut] * d**-0.5
                heads.append(torch.softmax(logits, 0) @ v[heard][:, cut])
            rows.append(layer.out_proj(torch.cat(heads)))
    return torch.stack(rows).reshape(x.shape)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_and_gradients(name: str, configuration: Configuration) -> None:
    pattern = FAMILIES[name]
    layer = made(pattern, configuration, index=3)
    parts = {
        "sequential": [pattern.parts[3 % pattern.p]],
        "union": list(pattern.union().parts),
        "multihead": list(pattern.parts),
    }[configuration]
    x = tokens(2, 9, 8).requires_grad_()
    padded = some_padding(2, 9)
    padded[1, :3] = True
    given = [x, *layer.parameters()]
    out, wanted = layer(x, key_padding_mask=padded), plain(layer, x, parts, padded)
    assert (out - wanted).abs().max() < 1e-12
    direction = tokens(2, 9, 8, seed=5)
    one, two = (torch.autograd.grad((y * direction).sum(), given) for y in (out, wanted))
    for ours, theirs in zip(one, two, strict=True):
        assert (ours - theirs).abs().max() < 1e-12 * max(1.0, theirs.abs().max())
    layer.implementation = "reference"
    assert (layer(x, key_padding_mask=padded) - wanted).abs().max() < 1e-12


def test_configurations_differ() -> None:
    """Negative control: nothing above holds for another configuration or layer."""
    pattern, x = FAMILIES["strided"], tokens(1, 9, 8)
    outputs = [made(pattern, one)(x) for one in CONFIGURATIONS]
    outputs.append(made(pattern, "sequential", index=1)(x))
    for i, one in enumerate(outputs):
        for two in outputs[:i]:
            assert (one - two).abs().max() > 1e-3


def test_dense_is_plain_attention_with_the_same_names() -> None:
    theirs = nn.MultiheadAttention(8, 4, batch_first=True, dtype=torch.float64)
    randomise(theirs)
    ours = SparseAttention(8, 4, patterns.dense(7), dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x, padded = tokens(2, 7, 8), some_padding(2, 7)
    expected, weights = theirs(x, x, x, padded, average_attn_weights=False)
    out, own = ours(x, key_padding_mask=padded, need_weights=True)
    assert (ours(x, key_padding_mask=padded) - expected).abs().max() < 1e-14
    assert (out - expected).abs().max() < 1e-14
    assert (own - weights).abs().max() < 1e-15
    relative = RelativeAttention(8, 4, dtype=torch.float64)
    relative.load_state_dict(ours.state_dict())


def test_any_batch_shape_one_token_and_an_empty_batch() -> None:
    layer = SparseAttention(8, 2, patterns.star).double()
    x, padded = tokens(2, 3, 5, 8), torch.zeros(2, 3, 5, dtype=torch.bool)
    padded[1, 2, 3:] = True
    out = layer(x, key_padding_mask=padded)
    assert (out[1, 2] - layer(x[1, 2], key_padding_mask=padded[1, 2])).abs().max() < 1e-14
    assert layer(x[0, 0, :1]).shape == (1, 8)
    assert layer(x[:0]).shape == (0, 3, 5, 8)


def test_a_function_makes_a_pattern_for_each_length_once() -> None:
    def window(n: int) -> Pattern:
        return patterns.window(n, 2)

    make = mock.Mock(side_effect=window)
    layer = SparseAttention(8, 2, make)
    with mock.patch.object(module, "MOST_LENGTHS", 2):
        for n in (5, 7, 5, 7, 9, 7):
            layer(torch.ones(n, 8))
        assert [call.args[0] for call in make.call_args_list] == [5, 7, 9]
        layer(torch.ones(5, 8))  # the oldest was forgotten
        assert make.call_count == 4


def test_layers_share_what_is_prepared() -> None:
    one, two = (
        SparseAttention(8, 2, patterns.strided(12, 3), configuration="union")
        for _ in range(2)
    )
    assert one.for_length(12)[0] is two.for_length(12)[0]
    assert plan_of(one.for_length(12)[0]) is plan_of(two.for_length(12)[0])


def test_copies_and_state_dicts() -> None:
    layer = made(FAMILIES["strided"], "multihead")
    x = tokens(1, 9, 8)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), layer(x))
    names = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert sorted(layer.state_dict()) == sorted(names)
    sizes = {
        n: sum(
            t.numel() for t in SparseAttention(8, 2, patterns.star(n)).state_dict().values()
        )
        for n in (9, 99)
    }
    assert len(set(sizes.values())) == 1


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_causal_patterns(name: str, configuration: Configuration) -> None:
    """Dense attention with both masks; no output depends on later tokens."""
    pattern = FAMILIES[name]
    layer = made(pattern.causal_part(), configuration, index=1)
    two_sided = made(pattern, configuration, index=1)
    x, padded = tokens(2, 9, 8).requires_grad_(), some_padding(2, 9)
    past = torch.ones(9, 9, dtype=torch.bool).tril()
    given = [x, *layer.parameters()]
    out = layer(x, key_padding_mask=padded)
    wanted = two_sided(x, key_padding_mask=padded, attn_mask=past)
    assert (out - wanted).abs().max() < 1e-12
    one = torch.autograd.grad((out * tokens(2, 9, 8, seed=5)).sum(), given)
    given = [x, *two_sided.parameters()]
    two = torch.autograd.grad((wanted * tokens(2, 9, 8, seed=5)).sum(), given)
    for ours, theirs in zip(one, two, strict=True):
        assert (ours - theirs).abs().max() < 1e-12 * max(1.0, theirs.abs().max())
    other = x.detach().clone()
    other[:, 5:] += 1.0
    changed = (layer(x) - layer(other)).abs().amax((0, 2))
    assert changed[:5].max() < 1e-14
    assert changed[5:].min() > 1e-3


def test_causal_patterns_of_many_tokens() -> None:
    """More than run by a mask: by pieces, with rows that are long and short."""
    n = 300
    x = tokens(1, n, 8)
    for pattern in (
        patterns.strided(n, 17).union(),
        patterns.fixed(n, 17).union(),
        patterns.star(n, 2),
        patterns.window_global(n, 3, (0, 150)),
    ):
        layer, two_sided = (made(p, "union") for p in (pattern.causal_part(), pattern))
        wanted = two_sided(x, attn_mask=torch.ones(n, n, dtype=torch.bool).tril())
        assert (layer(x) - wanted).abs().max() < 1e-12


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_cache_gives_what_one_call_gives(name: str, configuration: Configuration) -> None:
    pattern = FAMILIES[name].causal_part()
    layer = SparseAttention(8, 4, pattern, kv_heads=2, configuration=configuration).double()
    randomise(layer)
    x, padded = tokens(2, 9, 8), some_padding(2, 9)
    with torch.no_grad():
        whole = layer(x, key_padding_mask=padded)
        for steps in ([1] * 9, [4, 1, 3, 1], [9]):
            cache, found = KeyCache(), list[Tensor]()
            for step in steps:
                part = slice(cache.length, cache.length + step)
                found.append(
                    layer(x[:, part], cache=cache, key_padding_mask=padded[:, part])
                )
            assert (torch.cat(found, 1) - whole).abs().max() < 1e-12


def test_a_token_costs_what_its_set_costs() -> None:
    """In long prompts and in generation: keys are read that some query of a chunk hears."""
    n = 1000
    layer = made(patterns.window(n, 4).causal_part(), "union")
    x, cache = tokens(1, n, 8), KeyCache(n)
    read: list[int] = []
    scores = some_queries.scores

    def counting(q: Tensor, k: Tensor, scale: float) -> Tensor:
        read.append(q.shape[-2] * k.shape[-2])
        return scores(q, k, scale)

    with torch.no_grad(), mock.patch.object(some_queries, "scores", counting):
        found = [layer(x[:, :900], cache=cache), layer(x[:, 900:901], cache=cache)]
    assert sum(read[:-1]) < 900 * (some_queries.CHUNK + 5)
    assert read[-1] == 5
    assert (torch.cat(found, 1) - layer(x)[:, :901]).abs().max() < 1e-12


def test_a_function_makes_the_pattern_for_the_room_of_the_cache() -> None:
    def strided(n: int) -> Pattern:
        return patterns.strided(n, 3).causal_part()

    layer = SparseAttention(8, 2, strided).double()
    x, cache = tokens(1, 7, 8), KeyCache(9)
    found = torch.cat([layer(x[:, i : i + 1], cache=cache) for i in range(7)], 1)
    assert (found - layer(x)).abs().max() < 1e-12
    with pytest.raises(InputError, match=r"made for each length, .* Give the layer a pat"):
        layer(x, cache=KeyCache())
    two_sided = SparseAttention(8, 2, patterns.star).double()
    with pytest.raises(InputError, match=r"\(Star\) some attend to later .*causal_part"):
        two_sided(x, cache=KeyCache(9))
    layer = SparseAttention(8, 2, strided(5)).double()
    with pytest.raises(InputError, match="holds 0 tokens, and 7 more are beyond the patt"):
        layer(x, cache=KeyCache(9))


def test_a_context_is_attended_to_by_place() -> None:
    """Token i of x stands at place i + offset of the context, and hears that set."""
    layer = made(patterns.strided(9, 3), "multihead")
    x, y = tokens(2, 4, 8), tokens(2, 9, 8, seed=2)
    padded = some_padding(2, 9)
    place = torch.cat([torch.zeros(2, 3, 8), x, torch.zeros(2, 2, 8)], 1)
    wanted = layer(place, context=y, offset=0, key_padding_mask=padded)[:, 3:7]
    found = layer(x, context=y, offset=3, key_padding_mask=padded)
    assert (found - wanted).abs().max() < 1e-12
    assert (
        layer(x, context=y, offset=2) - layer(x, context=y, offset=3)
    ).abs().max() > 0.01
    full = SparseAttention(8, 4, patterns.dense(9)).double()
    full.load_state_dict(layer.state_dict())
    relative = RelativeAttention(8, 4).double()
    relative.load_state_dict(layer.state_dict())
    pair = full(x, context=y, offset=3), relative(x, context=y)
    assert (pair[0] - pair[1]).abs().max() < 1e-12
    for offset in (None, -1, 6):
        with pytest.raises(InputError, match=f"offset={offset}. Give offset= from 0 to 5"):
            layer(x, context=y, offset=offset)
    with pytest.raises(InputError, match=r"there are 7 tokens, but the pattern"):
        layer(x, context=y[:, :7], offset=0)


def test_masks_groups_of_heads_and_some_weights() -> None:
    x, padded, mask = tokens(2, 9, 8), some_padding(2, 9), tokens(4, 9, 9, seed=3)
    for configuration in CONFIGURATIONS:
        layer = SparseAttention(
            8, 4, FAMILIES["fixed"], kv_heads=2, configuration=configuration
        ).double()
        randomise(layer)
        parts = layer.for_length(9)
        seen = torch.stack([torch.tensor(part.mask()) for part in parts])
        seen = seen.repeat_interleave(4 // len(parts), 0)
        dense = RelativeAttention(8, 4, kv_heads=2).double()
        dense.load_state_dict(layer.state_dict())
        given = {"key_padding_mask": padded}
        wanted, weights = dense(x, attn_mask=seen, need_weights=True, **given)
        assert (layer(x, **given) - wanted).abs().max() < 1e-12
        rows = torch.tensor([8, 2, 3])
        out, some = layer(x, need_weights=rows, **given)
        assert (out - wanted).abs().max() < 1e-12
        assert (some - weights[:, :, rows]).abs().max() < 1e-13
        added = mask.masked_fill(~seen, -torch.inf)
        wanted, weights = dense(x, attn_mask=added, need_weights=True, **given)
        out, some = layer(x, attn_mask=mask, need_weights=slice(1, 3), **given)
        assert (out - wanted).abs().max() < 1e-12
        assert (some - weights[:, :, 1:3]).abs().max() < 1e-13


def test_dropout_follows_the_connections() -> None:
    """Each weight is dropped or divided by 1 - p; nothing of size n x n is made."""
    n = 2048
    layer = SparseAttention(8, 1, patterns.window(n, 1), dropout=0.5).double()
    x = tokens(1, n, 8).requires_grad_()
    with torch.no_grad():
        layer.out_proj.weight.copy_(torch.eye(8))
        layer.in_proj_weight[:16] = 0.0  # equal weights
        layer.in_proj_weight[16:] = torch.eye(8)
    with mock.patch.object(SparseAttention, "_weights", side_effect=AssertionError):
        out = layer(x)
    third = x.detach()[0] / 3
    for i in range(1, 40):
        kept = torch.stack([third[i - 1], third[i], third[i + 1]])
        found = torch.linalg.lstsq(kept.T, out.detach()[0, i]).solution
        assert ((found.abs() < 1e-8) | ((found - 2).abs() < 1e-8)).all()
    gradient = torch.autograd.grad(out.sum(), x)[0]
    assert 0.9 < float(gradient.mean()) < 1.1
    layer.eval()
    assert (layer(x)[0, 5] - third[4:7].sum(0)).abs().max() < 1e-12


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_weights_of_some_queries_are_those_that_were_dropped(
    configuration: Configuration,
) -> None:
    """Group by group: the output is these weights times the values, head by head."""
    layer = made(patterns.strided(12, 3), configuration)
    layer.dropout = 0.4
    with torch.no_grad():
        layer.out_proj.weight.copy_(torch.eye(layer.embed_dim))
    x = tokens(2, 12, layer.embed_dim)
    out, weights = layer.train()(x, need_weights=slice(0, 12))
    values = x @ layer.in_proj_weight[2 * layer.embed_dim :].mT
    if layer.in_proj_bias is not None:
        values = values + layer.in_proj_bias[2 * layer.embed_dim :]
    mixed = weights @ values.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
    wanted = mixed.transpose(1, 2).flatten(2)
    wanted = layer.out_proj(wanted)
    assert (out - wanted).abs().max() < 1e-12
    same = [torch.equal(weights[:, k] == 0, weights[:, 0] == 0) for k in range(1, 4)]
    assert not any(same), "each head drops its own"


def test_dropout_only_in_training() -> None:
    layer = SparseAttention(8, 2, patterns.window(16, 3), dropout=0.5)
    x = tokens(4, 16, 8, dtype=torch.float32)
    layer.eval()
    _, whole = layer(x, need_weights=True)
    assert (layer(x) - layer(x)).abs().max() == 0
    layer.train()
    _, dropped = layer(x, need_weights=True)
    kept = dropped != 0
    assert 0.3 < kept[whole > 0].float().mean() < 0.7
    assert (dropped[kept] - 2 * whole[kept]).abs().max() < 1e-6
    assert not kept[whole == 0].any()


def test_settings_of_a_copy_may_be_changed() -> None:
    """As for the second layer of a stack of copies; what is wrong leaves it as it was."""
    layer = SparseAttention(8, 2, patterns.strided(9, 3), dtype=torch.float64)
    x = tokens(2, 9, 8)
    changes = {
        "layer_index": 1, "configuration": "union", "pattern": patterns.star(9, 2),
    }  # fmt: skip
    twin = copy.deepcopy(layer)
    settings: dict[str, Any] = {"pattern": layer.pattern}
    for name, value in changes.items():
        before = twin(x)
        setattr(twin, name, value)
        settings[name] = value
        made = SparseAttention(8, 2, dtype=torch.float64, **settings)
        made.load_state_dict(layer.state_dict())
        assert torch.equal(twin(x), made(x))
        assert (twin(x) - before).abs().max() > 1e-3
    one: Any = SparseAttention(9, 3, patterns.strided(9, 3))
    for name, value, text in (
        ("configuration", "multihead", "num_heads=3 cannot be shared equally by the p=2"),
        ("configuration", "both", "cannot have this configuration: .* use one of sequen"),
        ("layer_index", -1, "layer_index=-1 is not the number of a layer"),
        ("pattern", "star", "'star' is not a pattern"),
    ):
        before, kept = getattr(one, name), one.for_length(9)
        with pytest.raises(InputError, match=text):
            setattr(one, name, value)
        assert getattr(one, name) is before
        assert one.for_length(9) == kept


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 3}, "the next multiple is 9"),
        ({"configuration": "both"}, "use one of sequential, union, multihead"),
        ({"dropout": 1.0}, "dropout=1.0 is not a probability below 1"),
        ({"layer_index": -1}, "not the number of a layer"),
        ({"implementation": "fast"}, "'auto' or 'reference'"),
        ({"pattern": "star"}, "'star' is not a pattern; give one of everyformer.patterns"),
        (
            {"configuration": "multihead", "num_heads": 1},
            "num_heads=1 cannot be shared equally by the p=2 patterns of 'strided'",
        ),
    ],
)
def test_refusals(settings: dict[str, object], message: str) -> None:
    given: dict[str, object] = {
        "num_heads": 2,
        "pattern": patterns.strided(9, 3),
        **settings,
    }
    with pytest.raises(InputError, match=message):
        SparseAttention(8, **given)  # type: ignore[arg-type]


def test_inputs_that_do_not_fit() -> None:
    layer = SparseAttention(8, 2, patterns.star(9))
    with pytest.raises(InputError, match=r"there are 7 tokens, .* 'star' is for n=9; pad"):
        layer(torch.ones(7, 8))
    with pytest.raises(InputError, match=r"x has shape \(9, 7\)"):
        layer(torch.ones(9, 7))
    wrong = SparseAttention(8, 2, lambda n: patterns.star(n + 1))
    with pytest.raises(InputError, match="is for n=10"):
        wrong(torch.ones(9, 8))


def test_more_tokens_than_a_context_has() -> None:
    """The error says what to do: there is no offset at which they would fit."""
    layer, x = SparseAttention(8, 2, patterns.window(5, 1)), torch.ones(2, 7, 8)
    with pytest.raises(
        InputError, match=r"x has 7 tokens and the context 5.*to at least 7"
    ):
        layer(x, context=x[:, :5], offset=0)


@pytest.mark.unhooked
def test_contexts_and_offsets_of_another_type() -> None:
    layer: Any = SparseAttention(8, 2, patterns.star(9))
    x = torch.ones(9, 8)
    for context in (torch.ones(8), torch.tensor(1.0), torch.ones(0, 8)):
        with pytest.raises(InputError, match=r"context has shape .*at least 1"):
            layer(x, context=context, offset=0)
    for offset in ("a", 1.0, True, None):
        with pytest.raises(
            InputError, match=rf"offset={offset!r}\. Give offset= from 0 to"
        ):
            layer(x[:3], context=x, offset=offset)
    with pytest.raises(InputError, match="layer_index=True is not the number of a layer"):
        SparseAttention(8, 2, patterns.star(9), layer_index=True)


@pytest.mark.unhooked
def test_inputs_of_another_type() -> None:
    layer = SparseAttention(8, 2, patterns.star(9))
    with pytest.raises(
        InputError, match=r"dtype torch.int64; give floating.* give one bool"
    ):
        layer(torch.ones(9, 8).long(), key_padding_mask=torch.zeros(9))


@pytest.mark.compile
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_needs_no_pattern(strict: bool) -> None:
    layer = SparseAttention(8, 2, patterns.strided(9, 3), configuration="multihead").eval()
    x = torch.randn(2, 9, 8)
    exported = torch.export.export(layer, (x,), strict=strict)
    assert not any("everyformer" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(x), layer(x))


@pytest.mark.compile
def test_an_exported_layer_takes_any_batch_and_length() -> None:
    """Shorter sequences are the first tokens, as if padded and hidden."""
    layer = SparseAttention(8, 2, patterns.strided(9, 3), configuration="multihead").eval()
    sizes = {0: torch.export.Dim("b"), 1: torch.export.Dim("n", min=2, max=9)}
    exported = torch.export.export(layer, (torch.randn(3, 5, 8),), dynamic_shapes=(sizes,))
    for batch, n in ((2, 9), (4, 3), (1, 6)):
        x = torch.randn(batch, n, 8)
        longer = nn.functional.pad(x, (0, 0, 0, 9 - n))
        padded = (torch.arange(9) >= n).expand(batch, -1)
        wanted = layer(longer, key_padding_mask=padded)[:, :n]
        torch.testing.assert_close(exported.module()(x), wanted)
    made_for_each = SparseAttention(8, 2, patterns.star).eval()
    with pytest.raises(InputError, match="pattern of the longest sequence"):
        torch.export.export(made_for_each, (torch.ones(3, 5, 8),), dynamic_shapes=(sizes,))


@pytest.mark.compile
def test_an_exported_layer_with_a_context_takes_any_batch_and_one_length() -> None:
    layer = SparseAttention(8, 2, patterns.strided(9, 3), dtype=torch.float64)
    given = {"context": tokens(2, 9, 8), "offset": 2}
    batch: dict[str, Any] = {name: {0: torch.export.Dim.AUTO} for name in ("x", "context")}
    made = torch.export.export(
        layer, (tokens(2, 3, 8),), given, dynamic_shapes=batch | {"offset": None}
    )
    x, context = tokens(5, 3, 8), tokens(5, 9, 8)
    found = made.module()(x, context=context, offset=2)
    assert (found - layer(x, context=context, offset=2)).abs().max() < 1e-12
    batch["context"] = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    with pytest.raises(InputError, match="Export it for one length of the context"):
        torch.export.export(
            layer, (tokens(2, 3, 8),), given, dynamic_shapes=batch | {"offset": None}
        )


def test_training_on_a_cpu_follows_the_pattern() -> None:
    """Copying the token before works with a window to the left, not to the right."""
    torch.manual_seed(0)
    n, symbols = 12, 6
    for part, solved in (
        (patterns.Window(n, 1, 0), True),
        (patterns.Window(n, 0, 1), False),
    ):
        embed, place = nn.Embedding(symbols, 16), nn.Parameter(0.3 * torch.randn(n, 16))
        layer = SparseAttention(16, 2, Pattern("one side", (part,)))
        head = nn.Linear(16, symbols)
        parameters = [place, *(p for m in (embed, layer, head) for p in m.parameters())]
        step = torch.optim.Adam(parameters, 0.02)
        loss = torch.tensor(0.0)
        for _ in range(120):
            x = torch.randint(symbols, (16, n))
            found = head(layer(embed(x) + place))[:, 1:]
            loss = nn.functional.cross_entropy(found.flatten(0, 1), x[:, :-1].flatten())
            step.zero_grad()
            loss.backward()
            step.step()
        assert (loss.item() < 0.3) == solved


class Beside(nn.Module):
    """The layer in all configurations, on the same tokens."""

    def __init__(self) -> None:
        super().__init__()
        found = (made(FAMILIES["strided"], each) for each in CONFIGURATIONS)
        self.layers = nn.ModuleList(found)

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        return torch.stack([layer(x, key_padding_mask=padded) for layer in self.layers])


@pytest.mark.compile
def test_layers_compile() -> None:
    """With the operator in the graph, not with n x n weights as when exported."""
    torch.compiler.reset()
    seen: list[str] = []

    def inductor(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return lookup_backend("inductor")(graph, inputs)

    model, x, padded = Beside(), tokens(2, 9, 8), some_padding(2, 9)
    compiled = torch.compile(model, fullgraph=True, backend=inductor)
    out, wanted = (f(x, padded) for f in (compiled, model))
    assert (out - wanted).abs().max() < 1e-12
    given = list(model.parameters())
    one, two = (torch.autograd.grad(y.square().sum(), given) for y in (out, wanted))
    for a, b in zip(one, two, strict=True):
        assert (a - b).abs().max() < 1e-10
    assert any("everyformer" in target for target in seen)
    assert not any("softmax" in target for target in seen)


@pytest.mark.compile
def test_lengths_may_change_when_compiled() -> None:
    """And weights are dropped in the graph, those that eager drops with the same seed."""
    torch.compiler.reset()
    layer = SparseAttention(8, 2, patterns.star, dropout=0.4).double()
    compiled = torch.compile(layer, fullgraph=True, options={"fallback_random": True})

    def slopes(f: Any, x: Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.autograd.grad(f(x).square().sum(), layer.in_proj_weight)[0]

    for n in (5, 9):
        x = tokens(2, n, 8)
        assert (slopes(compiled, x, n) - slopes(layer, x, n)).abs().max() < 1e-10
        assert (slopes(compiled, x, n) - slopes(layer, x, n + 1)).abs().max() > 1e-3
