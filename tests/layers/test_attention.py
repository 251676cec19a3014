"""The layer: gain, order, padding, causality, lengths, names, precision."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from torch import Tensor, nn

from everyformer.layers import (
    T5,
    Deberta,
    Encoding,
    Gain,
    GraphGain,
    Graphormer,
    RelativeAttention,
    Shaw,
    Swin,
    T5Buckets,
    ToeplitzGain,
    TransformerXL,
    load_official_gain,
    no_decay_parameters,
    parameter_groups,
)
from everyformer.layers import attention as attention_module
from everyformer.layers.weights import hidden_pairs
from everyformer.papers import LUO2022, Citation

FAST = ["none", "t5", "t5-buckets", "alibi", "rotary"]
SLOW = ["shaw", "shaw-values", "deberta", "xl"]
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}


def layer_with(name: str | None, **settings: Any) -> RelativeAttention:
    settings = {"gain": True, "max_len": 16, **settings}
    layer = RelativeAttention(8, 2, encoding=name, **settings)
    layer.double()
    randomise(layer)
    return layer


class TestGain:
    def test_starts_at_one_and_has_255_numbers_per_head_at_length_128(self) -> None:
        gain = ToeplitzGain(12, max_len=128)
        assert gain.table.numel() == 255 * 12 == 3060
        assert (gain.table == 1).all()

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("name", FAST + SLOW)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_of_ones_changes_no_bit(
        self, name: str, causal: bool, dtype: torch.dtype
    ) -> None:
        layer = layer_with(name, causal=causal, implementation="reference").to(dtype)
        assert layer.gain is not None
        layer.gain.reset_parameters()
        x, padded = tokens(2, 7, 8, dtype=dtype), some_padding(2, 7)
        with_ones = layer(x, key_padding_mask=padded)
        layer.gain = None
        assert torch.equal(with_ones, layer(x, key_padding_mask=padded))

    @pytest.mark.parametrize("name", FAST + SLOW)
    def test_weights_over_softmax_depend_on_the_offset_alone(self, name: str) -> None:
        layer = layer_with(name)
        gain = layer.gain
        assert gain is not None
        _, weights = layer(tokens(2, 6, 8), need_weights=True)
        layer.gain = None
        _, softmax = layer(tokens(2, 6, 8), need_weights=True)
        assert (softmax.sum(-1) - 1).abs().max() < 1e-12
        ratio = weights / softmax
        for i in range(6):
            for j in range(6):
                wanted = gain.table[:, i - j + 15]
                assert (ratio[:, :, i, j] - wanted).abs().max() < 1e-10

    def test_one_object_serves_several_layers(self) -> None:
        gain, encoding = ToeplitzGain(2, 16), T5(2, 16)
        layers = nn.ModuleList(
            RelativeAttention(8, 2, encoding=encoding, gain=gain) for _ in range(3)
        )
        names = [name for name, _ in layers.named_parameters()]
        assert [name for name in names if "table" in name] == [
            "0.encoding.table",
            "0.gain.table",
        ]
        x = tokens(1, 5, 8, dtype=torch.float32)
        for layer in layers:
            x = layer(x)
        x.sum().backward()
        own = RelativeAttention(8, 2, gain=True)
        assert own.gain is not gain
        assert gain.table.grad is not None
        assert gain.table.grad[:, 11:20].abs().min() > 0

    def test_official_tables_are_flipped(self) -> None:
        """n = 2: the released table has j - i = -1, 0, 1 in its rows."""
        table = tokens(3, 2, dtype=torch.float32)
        gain = ToeplitzGain(2, max_len=2)
        load_official_gain(gain, table)
        matrix = gain.matrix(2)[0]
        for i in range(2):
            for j in range(2):
                assert torch.equal(matrix[:, i, j], table[(j - i) + 1])

    def test_buckets(self) -> None:
        layer = layer_with("t5", gain=ToeplitzGain(2, buckets=T5Buckets(8, 16)))
        assert layer.gain is not None
        assert layer.gain.table.shape == (2, 8)
        _, weights = layer(tokens(1, 16, 8), need_weights=True)
        layer.gain, gain = None, layer.gain
        _, softmax = layer(tokens(1, 16, 8), need_weights=True)
        assert ((weights / softmax)[0, :, 15, 0] - gain.table[:, 3]).abs().max() < 1e-10
        assert ((weights / softmax)[0, :, 0, 15] - gain.table[:, 7]).abs().max() < 1e-10

    def test_cites_the_paper(self) -> None:
        assert RelativeAttention.__implements__ == (  # pyright: ignore[reportAttributeAccessIssue]
            Citation(LUO2022, "Equation 8"),
        )


class TestPaths:
    @pytest.mark.parametrize("dtype", list(TOLERANCE))
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("name", FAST)
    def test_fast_equals_reference(
        self, name: str, causal: bool, dtype: torch.dtype
    ) -> None:
        layer = layer_with(name, causal=causal, max_len=150).to(dtype)
        x, padded = tokens(2, 141, 8, dtype=dtype), some_padding(2, 141)
        fast = layer(x, key_padding_mask=padded)
        layer.implementation = "reference"
        slow = layer(x, key_padding_mask=padded)
        assert fast.dtype == slow.dtype == dtype
        assert (fast - slow).abs().max() <= TOLERANCE[dtype] * max(
            1, slow.detach().abs().max()
        )

    @pytest.mark.parametrize("name", FAST)
    def test_gradients_of_both_paths_agree(self, name: str) -> None:
        layer = layer_with(name, causal=True)
        x = tokens(2, 9, 8).requires_grad_()
        gradients: list[tuple[Tensor, ...]] = []
        for implementation in ("auto", "reference"):
            layer.implementation = implementation
            given = [x, *layer.parameters()]
            out = layer(x, key_padding_mask=some_padding(2, 9))
            gradients.append(torch.autograd.grad((out * tokens(2, 9, 8)).sum(), given))
        for one, two in zip(*gradients, strict=True):
            assert (one - two).abs().max() < 1e-12

    @pytest.mark.parametrize(
        ("name", "settings", "call", "fast"),
        [
            *((name, {}, {}, True) for name in FAST),
            *((name, {}, {}, False) for name in SLOW),
            ("t5", {"implementation": "reference"}, {}, False),
            ("t5", {"dropout": 0.5}, {}, True),
            ("t5", {}, {"need_weights": slice(1, 3)}, True),
            ("t5", {}, {"attn_mask": torch.ones(5, 5, dtype=torch.bool)}, True),
            ("xl", {"dropout": 0.5}, {}, False),
            ("t5", {}, {"need_weights": True}, False),
        ],
    )
    def test_which_one_runs(
        self, name: str, settings: dict[str, Any], call: dict[str, Any], fast: bool
    ) -> None:
        layer = layer_with(name, **settings)
        operator = attention_module.toeplitz_attention
        with mock.patch.object(
            attention_module, "toeplitz_attention", side_effect=operator
        ) as spy:
            layer(tokens(2, 5, 8), **call)
            assert spy.called == fast
            layer.eval()
            layer(tokens(2, 5, 8), **call)
            assert spy.called == fast

    def test_gradcheck(self) -> None:
        layer = layer_with("deberta", causal=True)
        x = tokens(1, 4, 8).requires_grad_()
        given = (x, *layer.parameters())
        names = [name for name, _ in layer.named_parameters()]

        def run(x: Tensor, *parameters: Tensor) -> Tensor:
            values = dict(zip(names, parameters, strict=True))
            return torch.func.functional_call(layer, values, (x,))

        assert torch.autograd.gradcheck(run, given, fast_mode=True)


class TestMasks:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("name", FAST + SLOW)
    def test_padded_tokens_change_nothing(self, name: str, causal: bool) -> None:
        layer = layer_with(name, causal=causal)
        x, padded = tokens(2, 9, 8), some_padding(2, 9)
        padded[1, 4] = True
        other = x.clone()
        other[padded] = 100.0
        one, two = (layer(t, key_padding_mask=padded) for t in (x, other))
        assert torch.equal(one[~padded], two[~padded])
        assert not torch.equal(one[padded], two[padded])

    @pytest.mark.parametrize("implementation", ["auto", "reference"])
    @pytest.mark.parametrize("name", FAST + SLOW)
    def test_without_keys_only_the_output_bias_remains(
        self, name: str, implementation: str
    ) -> None:
        layer = layer_with(name, implementation=implementation)
        x = tokens(2, 5, 8).requires_grad_()
        padded = torch.tensor([[True] * 5, [False] * 5])
        out = layer(x, key_padding_mask=padded)
        assert torch.equal(out[0], layer.out_proj.bias.expand(5, 8))
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
            out = layer(x, key_padding_mask=padded)
            gradients = torch.autograd.grad(out.sum(), [x, *layer.parameters()])
        assert all(g.isfinite().all() for g in gradients)
        assert not gradients[0][0].any()
        assert gradients[0][1].any()

    def test_the_last_queries_see_all_earlier_keys(self) -> None:
        hidden = hidden_pairs(
            2, 4, causal=True, key_padding=None, device=torch.device("cpu")
        )
        assert hidden is not None
        assert hidden[0, 0].tolist() == [[False, False, False, True], [False] * 4]

    @pytest.mark.parametrize("name", FAST + SLOW)
    def test_causal_outputs_ignore_later_tokens(self, name: str) -> None:
        layer = layer_with(name, causal=True)
        x = tokens(1, 8, 8)
        other = x.clone()
        other[:, 5:] += 1.0
        assert (layer(x) - layer(other))[:, :5].abs().max() < 1e-14
        assert (layer(x) - layer(other))[:, 5:].abs().max() > 1e-3
        layer.causal = False
        assert (layer(x) - layer(other))[:, :5].abs().max() > 1e-3

    def test_equals_torch_without_encoding(self) -> None:
        theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
        randomise(theirs)
        ours = RelativeAttention(8, 2, dtype=torch.float64)
        ours.load_state_dict(theirs.state_dict())
        x, padded = tokens(2, 7, 8), some_padding(2, 7)
        expected, weights = theirs(x, x, x, padded, average_attn_weights=False)
        out, own = ours(x, key_padding_mask=padded, need_weights=True)
        assert (out - expected).abs().max() < 1e-14
        assert (own - weights).abs().max() < 1e-15

    @pytest.mark.parametrize("name", FAST + SLOW)
    def test_an_empty_batch(self, name: str) -> None:
        layer = layer_with(name)
        padded = torch.zeros(0, 5, dtype=torch.bool)
        out = layer(torch.empty(0, 5, 8, dtype=torch.float64), key_padding_mask=padded)
        assert out.shape == (0, 5, 8)

    def test_any_batch_shape(self) -> None:
        layer = layer_with("t5")
        x, padded = tokens(2, 3, 5, 8), torch.zeros(2, 3, 5, dtype=torch.bool)
        padded[1, 2, 3:] = True
        out, weights = layer(x, key_padding_mask=padded, need_weights=True)
        assert weights.shape == (2, 3, 2, 5, 5)
        lone = layer(x[1, 2], key_padding_mask=padded[1, 2])
        assert (out[1, 2] - lone).abs().max() < 1e-14


class TestDropout:
    def test_comes_after_the_gain_and_only_in_training(self) -> None:
        layer = layer_with("t5", dropout=0.5)
        x = tokens(4, 8, 8)
        layer.eval()
        _, whole = layer(x, need_weights=True)
        layer.train()
        torch.manual_seed(0)
        out, dropped = layer(x, need_weights=True)
        kept = dropped != 0
        assert 0.3 < kept.double().mean() < 0.7
        assert (dropped[kept] - 2 * whole[kept]).abs().max() < 1e-14
        torch.manual_seed(0)
        assert (layer(x) - out).abs().max() < 1e-13  # the operator drops the same
        torch.manual_seed(0)
        again, some = layer(x, need_weights=torch.tensor([6, 1, 2]))
        assert (again - out).abs().max() < 1e-13
        assert (some - dropped[:, :, [6, 1, 2]]).abs().max() < 1e-14
        assert not torch.equal(layer(x), out)
        layer.eval()
        assert not torch.equal(layer(x), out)


class TestLengths:
    @pytest.mark.parametrize("name", ["t5", "shaw", "shaw-values", "deberta", "none"])
    def test_clamped_on_request(self, name: str) -> None:
        """Clipping at 3 equals a longer table whose outer entries repeat."""
        short = layer_with(name, max_len=4, clamp=True)
        long = layer_with(name, max_len=10)
        state = short.state_dict()
        for key, value in state.items():
            if key.startswith(("encoding.", "gain.")):
                axis = value.shape.index(7)
                places = torch.arange(-9, 10).clamp(-3, 3) + 3
                state[key] = value.index_select(axis, places)
        long.load_state_dict(state)
        x = tokens(1, 10, 8)
        assert (short(x) - long(x)).abs().max() < 1e-13

    @pytest.mark.parametrize("name", ["t5-buckets", "alibi", "rotary", "xl"])
    def test_unlimited_without_tables(self, name: str) -> None:
        layer = layer_with(name, gain=None, max_len=2)
        assert layer(tokens(1, 40, 8)).isfinite().all()


def named(name: str) -> Callable[[], Encoding | str]:
    return lambda: name


PROJECTIONS = ["in_proj_bias", "in_proj_weight", "out_proj.bias", "out_proj.weight"]


@pytest.mark.parametrize(
    ("encoding", "gain", "names"),
    [
        (named("none"), None, []),
        (named("none"), True, ["gain.table"]),
        (named("t5"), True, ["encoding.table", "gain.table"]),
        (named("t5-buckets"), None, ["encoding.table"]),
        (named("alibi"), True, ["gain.table"]),
        (named("rotary"), None, []),
        (named("shaw"), None, ["encoding.key_table"]),
        (named("shaw-values"), None, ["encoding.key_table", "encoding.value_table"]),
        (named("deberta"), None, ["encoding.key_table", "encoding.query_table"]),
        (
            named("xl"),
            None,
            ["encoding.position_proj.weight", "encoding.u", "encoding.v"],
        ),
        (lambda: Swin(2, 3), None, ["encoding.table"]),
        (lambda: Graphormer(2, 5), GraphGain(2, 5), ["encoding.table", "gain.table"]),
        (
            lambda: Graphormer(2, 5, edge_dim=3),
            None,
            ["encoding.edge_table", "encoding.table"],
        ),
    ],
)
def test_names_in_the_state_dict(
    encoding: Callable[[], Encoding | str], gain: Gain | bool | None, names: list[str]
) -> None:
    layer = RelativeAttention(8, 2, encoding=encoding(), gain=gain)
    assert sorted(layer.state_dict()) == sorted(PROJECTIONS + names)
    free = set(names) - {"encoding.position_proj.weight"}
    assert no_decay_parameters(layer) == free
    decayed, kept = parameter_groups(layer, weight_decay=0.1)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert len(kept["params"]) == len(free)
    assert len(decayed["params"]) == len(PROJECTIONS + names) - len(free)


def test_decay_pulls_weights_but_not_tables() -> None:
    layer = layer_with("t5")
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    optimiser = torch.optim.AdamW(parameter_groups(layer, weight_decay=0.5), lr=0.1)
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step()
    changed = {
        name for name, p in layer.named_parameters() if not torch.equal(p, before[name])
    }
    assert changed == set(PROJECTIONS)


def test_tables_start_small_and_gains_at_one() -> None:
    torch.manual_seed(0)
    for encoding in (T5(16, 512), Shaw(64, 512), Deberta(4, 16, 128)):
        for p in encoding.parameters():
            assert 0.018 < float(p.detach().std()) < 0.022
            assert abs(float(p.detach().mean())) < 1e-3


NO_BIAS = {"value_bias": False, "feed_forward_bias": False}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"name": "none"}),
        ({"encoding": "t5"}, {"name": "t5", "bias": True}),
        ({"gain": True}, {"name": "urpe", "gain": True}),
        ({"encoding": "t5", "gain": True}, {"name": "t5+urpe", "bias": True, "gain": True}),
        ({"encoding": "shaw"}, {"name": "shaw", "bias": True}),
        ({"encoding": "alibi"}, {"name": "alibi", "bias": True, "fixed_bias": True}),
        (
            {"encoding": "shaw-values", "causal": True},
            {"name": "shaw-values", "bias": True, "value_term": True, "causal": True},
        ),
        (
            {"encoding": "rotary", "bias": False},
            {
                "name": "rotary",
                "bias": True,
                "rotary": True,
                "query_bias": False,
                **NO_BIAS,
            },
        ),
        (
            {"encoding": "deberta", "bias": False},
            {"name": "deberta", "bias": True, **NO_BIAS},
        ),
        (
            {"encoding": "xl", "bias": False},
            {"name": "xl", "bias": True, **NO_BIAS},
        ),
    ],
)
def test_spec(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    plain = RelativeAttention(8, 2).spec()
    spec = RelativeAttention(8, 2, **settings).spec()
    assert spec.to_json() == {**plain.to_json(), **expected}


def test_spec_on_graphs() -> None:
    layer = RelativeAttention(8, 2, encoding=Graphormer(2, 5), gain=GraphGain(2, 5))
    assert layer.spec().relative_to == "graph"
    assert layer.spec().name == "graphormer+urpe"
    assert RelativeAttention(8, 2).spec().relative_to == "offset"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FAST + SLOW)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    exact = layer_with(name, causal=True)
    half = layer_with(name, causal=True).to(dtype)
    exact.load_state_dict(half.state_dict())
    x = tokens(2, 9, 8, dtype=dtype)
    out = half(x)
    out.sum().backward()
    assert out.dtype == dtype
    assert all(p.grad is not None and p.grad.isfinite().all() for p in half.parameters())
    expected = exact(x.double())
    size = float(expected.detach().abs().max())
    steps = 8 * torch.finfo(dtype).eps  # a few roundings: projections, weights, output
    assert float((out - expected).detach().abs().max()) < steps * max(1.0, size)


def test_autocast() -> None:
    for name in [*FAST, *SLOW]:
        layer = layer_with(name).float()
        x = tokens(2, 9, 8, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        assert (out - layer(x)).abs().max() < 0.1


def test_heads_of_one_layer_differ_with_transformer_xl() -> None:
    layer = RelativeAttention(12, 3, encoding=TransformerXL(12, 3))
    _, weights = layer(tokens(1, 5, 12, dtype=torch.float32), need_weights=True)
    assert weights.shape == (1, 3, 5, 5)
    assert (weights[:, 0] - weights[:, 1]).abs().max() > 1e-3
