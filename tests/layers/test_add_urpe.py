"""One line puts URPE on models of torch and of transformers."""

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers import (
    ToeplitzGain,
    add_urpe,
    load_with_urpe,
    no_decay_parameters,
)
from everyformer.layers.hugging_face import IMPLEMENTATION, urpe

WIDTH, HEADS, N = 8, 2, 7


def encoder(depth: int = 2, **settings: Any) -> nn.TransformerEncoder:
    settings = {"batch_first": True, "dropout": 0.0, **settings}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, **settings)
    model = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    randomise(model, size=0.3)
    return model.double()


def scramble(model: nn.Module) -> None:
    """Give all gains other numbers."""
    gains = [m for m in model.modules() if isinstance(m, ToeplitzGain)]
    assert gains
    for seed, gain in enumerate(gains):
        with torch.no_grad():
            gain.table.add_(tokens(*gain.table.shape, seed=seed).to(gain.table.dtype))


def equal_tokens(n: int = N) -> Tensor:
    return tokens(1, 1, WIDTH).expand(1, n, WIDTH)


def spread(x: Tensor) -> float:
    return float((x.amax(-2) - x.amin(-2)).abs().max().detach())


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "padded": {"src_key_padding_mask": some_padding(2, N)},
    "causal": {
        "mask": nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64),
        "is_causal": True,
    },
    "masked": {"mask": torch.eye(N, dtype=torch.bool).roll(1, 0)},
    "both": {
        "mask": torch.ones(N, N, dtype=torch.bool).triu(1).roll(-1, 0),
        "src_key_padding_mask": some_padding(2, N),
    },
}


class TestTorch:
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize("call", list(CALLS))
    def test_ones_change_nothing(self, call: str, shared: bool, training: bool) -> None:
        for settings in ({}, {"norm_first": True, "bias": False}, {"batch_first": False}):
            plain = encoder(**settings).train(training)
            model = add_urpe(copy.deepcopy(plain), max_len=16, shared=shared)
            x = tokens(2, N, WIDTH)
            x = x if settings.get("batch_first", True) else x.transpose(0, 1)
            expected, out = plain(x, **CALLS[call]), model(x, **CALLS[call])
            assert (out - expected).abs().max() < 1e-12
            with torch.no_grad():  # where torch has fused paths of its own
                assert (model(x, **CALLS[call]) - expected).abs().max() < 1e-12
                scramble(model)
                assert (model(x, **CALLS[call]) - expected).abs().max() > 1e-2

    @pytest.mark.parametrize("shared", [False, True])
    def test_equal_tokens_come_apart(self, shared: bool) -> None:
        model = add_urpe(encoder(), max_len=16, shared=shared).eval()
        with torch.no_grad():
            assert spread(model(equal_tokens())) < 1e-14
            scramble(model)
            assert spread(model(equal_tokens())) > 1e-2

    def test_names_gradients_and_decay(self) -> None:
        plain = set(encoder(3).state_dict())
        one, each = (add_urpe(encoder(3), max_len=16, shared=s) for s in (True, False))
        assert set(one.state_dict()) - plain == {"urpe_gain.table"}
        names = {f"layers.{k}.self_attn.urpe_gain.table" for k in range(3)}
        assert set(each.state_dict()) - plain == names
        for model, wanted in ((one, {"urpe_gain.table"}), (each, names)):
            assert no_decay_parameters(model) == wanted
            model(tokens(2, N, WIDTH)).square().sum().backward()
            for name in wanted:
                gradient = model.get_parameter(name).grad
                assert gradient is not None
                assert (gradient[:, 16 - N : 15 + N] != 0).all()

    def test_a_lone_attention_module(self) -> None:
        plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
        randomise(plain)
        model = add_urpe(copy.deepcopy(plain), max_len=16)
        x = tokens(2, N, WIDTH)
        for average in (True, False):
            out, weights = model(x, x, x, average_attn_weights=average)
            expected, theirs = plain(x, x, x, average_attn_weights=average)
            assert (out - expected).abs().max() < 1e-12
            assert (weights - theirs).abs().max() < 1e-12
        lone = model(x[0], x[0], x[0], some_padding(2, N)[1])
        for ours, theirs in zip(
            lone, plain(x[0], x[0], x[0], some_padding(2, N)[1]), strict=True
        ):
            assert ours.shape == theirs.shape
            assert (ours - theirs).abs().max() < 1e-12
        scramble(model)
        _, changed = model(x, x, x, average_attn_weights=False)
        _, softmax = plain(x, x, x, average_attn_weights=False)
        gain = model.get_parameter("urpe_gain.table")
        for i, j in [(0, N - 1), (N - 1, 0), (3, 3)]:
            ratio = (changed / softmax)[:, :, i, j]
            assert (ratio - gain[:, i - j + 15]).abs().max() < 1e-10

    def test_rows_without_keys_have_finite_gradients(self) -> None:
        model = add_urpe(encoder(), max_len=16)
        x = tokens(2, N, WIDTH).requires_grad_()
        padded = torch.tensor([[True] * N, [False] * N])
        out = model(x, src_key_padding_mask=padded)
        out.sum().backward()
        assert out.isfinite().all()
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())

    def test_nested_tensors_are_switched_off(self) -> None:
        """torch packs padded samples in evaluation, past the attention modules."""
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
        plain = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).double().eval()
        model = add_urpe(copy.deepcopy(plain), max_len=16)
        x, padded = tokens(2, N, WIDTH), torch.zeros(2, N, dtype=torch.bool)
        padded[1, 4:] = True
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: nested tensors are a prototype
            expected = plain(x, src_key_padding_mask=padded)[~padded]
            out = model(x, src_key_padding_mask=padded)[~padded]
            assert (out - expected).abs().max() < 1e-12
            scramble(model)
            changed = model(x, src_key_padding_mask=padded)[~padded]
            assert (changed - expected).abs().max() > 1e-2

    def test_dropout_stays(self) -> None:
        attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True)
        model = add_urpe(attention, max_len=16)
        x = tokens(2, N, WIDTH, dtype=torch.float32)
        _, weights = model(x, x, x, average_attn_weights=False)
        assert 0.3 < (weights == 0).double().mean() < 0.7

    def test_decoders_keep_their_cross_attention(self) -> None:
        torch.manual_seed(0)
        plain = nn.Transformer(WIDTH, HEADS, 1, 2, 16, dropout=0.0, batch_first=True)
        plain = plain.double()
        model = add_urpe(copy.deepcopy(plain), max_len=16)
        x, y = tokens(2, 5, WIDTH), tokens(2, N, WIDTH, seed=2)
        assert (model(x, y) - plain(x, y)).abs().max() < 1e-12
        names = {name for name in model.state_dict() if "urpe" in name}
        assert names == {"encoder.urpe_gain.table", "decoder.urpe_gain.table"}
        scramble(model)
        assert (model(x, y) - plain(x, y)).abs().max() > 1e-2

    def test_copies_and_pickles_keep_one_gain(self) -> None:
        model = add_urpe(encoder(), max_len=16)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            x = tokens(2, N, WIDTH)
            assert torch.equal(twin(x), model(x))
            scramble(twin)
            assert (twin(x) - model(x)).abs().max() > 1e-2

    @pytest.mark.parametrize("shared", [False, True])
    def test_another_gain_in_its_place(self, shared: bool) -> None:
        """As libraries put one there that they train."""
        model = add_urpe(encoder(), max_len=16, shared=shared)
        x = tokens(2, N, WIDTH)
        before = model(x)
        gains = {k: m for k, m in model.named_modules() if isinstance(m, ToeplitzGain)}
        for name, gain in gains.items():
            model.set_submodule(name, copy.deepcopy(gain))
        assert torch.equal(model(x), before)
        scramble(model)
        assert (model(x) - before).abs().max() > 1e-2

    def test_a_saved_state_loads(self) -> None:
        model, fresh = (add_urpe(encoder(), max_len=16) for _ in range(2))
        scramble(model)
        fresh.load_state_dict(model.state_dict())
        x = tokens(2, N, WIDTH)
        assert torch.equal(fresh(x), model(x))

    def test_lengths(self) -> None:
        model = add_urpe(encoder(), max_len=N - 1)
        with pytest.raises(InputError, match=r"7 tokens.*max_len=6"):
            model(tokens(2, N, WIDTH))
        clamped = add_urpe(encoder(), max_len=N - 1, clamp=True)
        assert clamped(tokens(2, N, WIDTH)).isfinite().all()

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: nn.Linear(2, 2), r"Linear has no self-attention.*MultiheadAttention"),
            (lambda: add_urpe(encoder(), max_len=4), r"gains already"),
            (lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True), r"add_bias_kv"),
            (lambda: nn.MultiheadAttention(8, 2, kdim=4), r"kdim"),
            (lambda: type("Odd", (nn.MultiheadAttention,), {})(8, 2), r"Odd, a subclass"),
            (
                lambda: nn.Sequential(
                    nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 4)
                ),
                r"\[2, 4\] heads.*shared=False",
            ),
        ],
    )
    def test_refused(self, make: Callable[[], nn.Module], message: str) -> None:
        with pytest.raises(InputError, match=message):
            add_urpe(make(), max_len=16)

    @pytest.mark.parametrize("shared", [False, True])
    def test_cross_attention_of_equal_lengths(self, shared: bool) -> None:
        """By its name, or by the caller's word; otherwise the call is refused."""
        x, y = tokens(2, N, WIDTH), tokens(2, N, WIDTH, seed=2)
        for name, leave in (("cross_attn", ()), ("second", ("second",))):
            torch.manual_seed(0)
            plain = Pair(name).double()
            model = add_urpe(copy.deepcopy(plain), max_len=16, shared=shared, leave=leave)
            scramble(model)
            second, theirs = model.get_submodule(name), plain.get_submodule(name)
            assert type(second) is nn.MultiheadAttention
            assert second.state_dict().keys() == theirs.state_dict().keys()
            assert torch.equal(second(x, y, y)[0], theirs(x, y, y)[0])
            assert (model(x, y) - plain(x, y)).abs().max() > 1e-3
        unnamed = add_urpe(Pair("second").double(), max_len=16, shared=shared)
        with pytest.raises(InputError, match=r"two tensors.*leave="):
            unnamed(x, y)
        with pytest.raises(InputError, match=r"leave names third, which it does not have"):
            add_urpe(Pair("second"), max_len=16, leave=("third",))

    def test_a_decoder_layer_keeps_its_cross_attention(self) -> None:
        """With as many queries as keys; also alone, without a stack."""
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True)
        plain = layer.double()
        model = add_urpe(copy.deepcopy(plain), max_len=16)
        scramble(model)
        x, y = tokens(2, N, WIDTH), tokens(2, N, WIDTH, seed=2)
        assert type(model.multihead_attn) is nn.MultiheadAttention
        ours, theirs = (m.multihead_attn(x, y, y)[0] for m in (model, plain))
        assert torch.equal(ours, theirs)
        assert (model(x, y) - plain(x, y)).abs().max() > 1e-3

    def test_half_precision(self) -> None:
        model = add_urpe(encoder(), max_len=16).eval()
        scramble(model)
        exact = model(tokens(2, N, WIDTH))
        half = model.to(torch.bfloat16)(tokens(2, N, WIDTH).to(torch.bfloat16))
        assert half.dtype == torch.bfloat16
        assert (half.double() - exact).abs().max() < 0.1

    def test_cross_attention_is_refused_when_called(self) -> None:
        model = add_urpe(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), max_len=16)
        x = tokens(2, N, WIDTH, dtype=torch.float32)
        with pytest.raises(InputError, match="self-attention only"):
            model(x, x[:, :3], x[:, :3])


class Pair(nn.Module):
    """Self-attention, then cross-attention under some name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.name = name
        self.add_module(name, nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x, x, x)[0]
        return self.get_submodule(self.name)(x, y, y)[0]


def bert(library: Any) -> nn.Module:
    config = library.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    return library.BertModel(config)


def t5(library: Any) -> nn.Module:
    config = library.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2
    )
    return library.T5Model(config)


def t5_encoder(library: Any) -> nn.Module:
    config = library.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2
    )
    return library.T5EncoderModel(config)


def gpt2(library: Any) -> nn.Module:
    config = library.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    return library.GPT2LMHeadModel(config)


def llama(library: Any) -> nn.Module:
    config = library.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    return library.LlamaModel(config)


MODELS: dict[str, tuple[Callable[[Any], nn.Module], set[str]]] = {
    "bert": (bert, {"urpe_gain.table"}),
    "t5": (t5, {"encoder.urpe_gain.table", "decoder.urpe_gain.table"}),
    "t5-encoder": (t5_encoder, {"encoder.urpe_gain.table"}),
    "gpt2": (gpt2, {"transformer.urpe_gain.table"}),
    "llama": (llama, {"urpe_gain.table"}),
}

IDS = torch.tensor([[3, 14, 15, 9, 26, 5, 35], [8, 9, 7, 9, 3, 2, 3]])
SEEN = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("transformers")


def build(name: str, library: Any) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0](library).double().eval()


def call(model: nn.Module, ids: Tensor = IDS, **settings: Any) -> Tensor:
    if type(model).__name__ == "T5Model":
        settings["decoder_input_ids"] = ids.flip(1)
    return model(ids, **settings)[0]


class TestTransformers:
    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize("name", list(MODELS))
    def test_ones_change_nothing(self, name: str, shared: bool, library: Any) -> None:
        plain = build(name, library)
        model = add_urpe(copy.deepcopy(plain), max_len=16, shared=shared)
        assert (call(model) - call(plain)).abs().max() < 1e-6
        ours, theirs = (call(m, attention_mask=SEEN) for m in (model, plain))
        assert (ours - theirs)[SEEN.bool()].abs().max() < 1e-6
        names = {key for key in model.state_dict() if "urpe" in key}
        if shared:
            assert names == MODELS[name][1]
        else:
            assert len(names) == (4 if name == "t5" else 2)
        before = call(model).detach()
        scramble(model)
        assert (call(model) - before).abs().max() > 1e-3
        call(model, attention_mask=SEEN).square().sum().backward()
        for key in names:
            gradient = model.get_parameter(key).grad
            assert gradient is not None
            assert gradient[:, 15].abs().min() > 0

    @pytest.mark.parametrize("name", ["t5-encoder", "llama"])
    def test_equal_tokens_come_apart(self, name: str, library: Any) -> None:
        model, same = build(name, library), torch.full((1, N), 7)
        assert spread(call(model, same)) < 1e-6
        add_urpe(model, max_len=16)
        assert spread(call(model, same)) < 1e-6
        scramble(model)
        assert spread(call(model, same)) > 1e-2

    @pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
    def test_weights_over_softmax_are_the_gain(self, name: str, library: Any) -> None:
        plain = build(name, library)
        model = add_urpe(copy.deepcopy(plain), max_len=16)
        scramble(model)
        plain.set_attn_implementation("eager")  # pyright: ignore[reportCallIssue]
        ours = model(IDS, output_attentions=True).attentions[0]
        theirs = plain(IDS, output_attentions=True).attentions[0]
        gain = model.get_parameter(MODELS[name][1].copy().pop())
        for i, j in [(6, 0), (4, 3), (2, 2)] + ([(1, 5)] if name == "bert" else []):
            ratio = (ours / theirs)[:, :, i, j]
            assert (ratio - gain[:, i - j + 15]).abs().max() < 1e-6

    def test_a_growing_cache(self, library: Any) -> None:
        model: Any = add_urpe(build("gpt2", library), max_len=16)
        scramble(model)
        whole = model(IDS).logits
        start = model(IDS[:, :4], use_cache=True)
        one = model(IDS[:, 4:5], past_key_values=start.past_key_values)
        rest = model(IDS[:, 5:], past_key_values=one.past_key_values)
        pieces = torch.cat([start.logits, one.logits, rest.logits], 1)
        assert (pieces - whole).abs().max() < 1e-6

    def test_a_static_cache_is_refused(self, library: Any) -> None:
        model: Any = add_urpe(build("gpt2", library), max_len=16)
        cache = library.StaticCache(config=model.config, max_cache_len=12)
        with pytest.raises(InputError, match=r"StaticCache.*default cache"):
            model(IDS, past_key_values=cache)

    def test_refused_models(self, library: Any) -> None:
        config = library.DistilBertConfig(
            vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=32
        )
        with pytest.raises(InputError, match=r"DistilBert.*known are .*GPT2Attention"):
            add_urpe(library.DistilBertModel(config), max_len=16)
        with pytest.raises(InputError, match=r"wraps BertModel.*call add_urpe on that"):
            add_urpe(nn.Sequential(build("bert", library)), max_len=16)
        with pytest.raises(InputError, match="gains already"):
            add_urpe(add_urpe(build("bert", library), max_len=16), max_len=16)

    @pytest.mark.parametrize("called", ["GPT2Attention", "Mine"])
    def test_attention_of_others_is_refused(self, called: str, library: Any) -> None:
        """A class made of a known one, whatever its name; or another forward in one."""
        model: Any = build("gpt2", library)
        module = model.transformer.h[1].attn
        kind = type(module)
        module.__class__ = type(called, (kind,), {})
        with pytest.raises(InputError, match=f"it has {called}; known are .*GPT2Att"):
            add_urpe(model, max_len=16)
        module.__class__ = kind
        module.forward = partial(kind.forward, module)
        with pytest.raises(InputError, match="forward of its GPT2Attention was replaced"):
            add_urpe(model, max_len=16)
        assert not any("urpe" in name for name in model.state_dict())
        del module.forward
        add_urpe(model, max_len=16)

    def test_lengths(self, library: Any) -> None:
        model = add_urpe(build("bert", library), max_len=4)
        with pytest.raises(InputError, match=r"7 tokens.*max_len=4"):
            call(model)

    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize("name", list(MODELS))
    def test_saved_and_loaded(
        self, name: str, shared: bool, library: Any, tmp_path: Path
    ) -> None:
        model: Any = add_urpe(build(name, library), max_len=16, shared=shared, clamp=True)
        scramble(model)
        model.save_pretrained(tmp_path / "one")
        again: Any = load_with_urpe(tmp_path / "one", dtype=torch.float64).eval()
        assert type(again) is type(model)
        assert (call(again) - call(model)).abs().max() < 1e-6
        again.save_pretrained(tmp_path / "two")
        third = load_with_urpe(tmp_path / "two", type(model), dtype=torch.float64).eval()
        assert (call(third) - call(model)).abs().max() < 1e-6
        assert [n for n, _ in third.named_parameters()] == [
            n for n, _ in model.named_parameters()
        ]

    @pytest.mark.parametrize("name", list(MODELS))
    def test_gains_survive_the_loading_of_transformers(
        self, name: str, library: Any, tmp_path: Path
    ) -> None:
        """Its own `from_pretrained`, of the class or by AutoModel."""
        model: Any = build(name, library)
        leave = [
            next(n for n, m in model.named_modules() if type(m).__name__ in urpe.HEADS)
        ]
        add_urpe(model, max_len=16, shared=False, leave=leave)
        scramble(model)
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
        assert type(again) is type(model)
        assert (call(again) - call(model)).abs().max() < 1e-6
        if name == "t5-encoder":  # which AutoModel makes a whole of
            with pytest.raises(InputError, match=r"has no decoder.block.0.*urpe_gain"):
                library.AutoModel.from_pretrained(tmp_path)
            return
        part = library.AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
        saved = {k.removeprefix("transformer."): x for k, x in model.state_dict().items()}
        names = {key for key in part.state_dict() if "urpe" in key}
        assert len(names) == (3 if name == "t5" else 1)
        for key in names:
            assert torch.equal(part.state_dict()[key], saved[key])

    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize("name", ["t5", "gpt2"])
    def test_gains_that_peft_trains(
        self, name: str, shared: bool, library: Any, tmp_path: Path
    ) -> None:
        """It puts a copy in the place of each module that it saves, and trains that."""
        peft = pytest.importorskip("peft")
        model: Any = add_urpe(build(name, library), max_len=16, shared=shared)
        targets = ["c_attn"] if name == "gpt2" else ["q", "v"]
        settings = peft.LoraConfig(
            r=2, target_modules=targets, modules_to_save=["urpe_gain"],
            fan_in_fan_out=name == "gpt2",
        )  # fmt: skip
        tuned = peft.get_peft_model(model, settings)
        before = call(tuned.base_model.model)
        before.square().sum().backward()
        gains = {k: x for k, x in tuned.named_parameters() if "urpe" in k}
        trained = {k: x for k, x in gains.items() if x.requires_grad}
        assert len(trained) == len(gains) // 2
        for gain in trained.values():
            assert gain.grad is not None
            gain.data.add_(tokens(*gain.shape))
        ours = call(tuned.base_model.model)
        assert (ours - before).abs().max() > 1e-3
        merged = tuned.merge_and_unload()
        assert (call(merged) - ours).abs().max() < 1e-6
        merged.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
        assert (call(again) - ours).abs().max() < 1e-6

    def test_a_part_of_a_model_has_its_gains(self, library: Any, tmp_path: Path) -> None:
        model: Any = add_urpe(build("t5", library), max_len=16)
        scramble(model)
        model.save_pretrained(tmp_path)
        part, told = library.T5EncoderModel.from_pretrained(
            tmp_path, dtype=torch.float64, output_loading_info=True
        )
        assert not told["missing_keys"]
        ours, whole = part.eval()(IDS)[0], model.encoder(IDS)[0]
        assert (ours - whole).abs().max() < 1e-6

    def test_loading_where_everyformer_is_not_known(
        self, library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model: Any = add_urpe(build("gpt2", library), max_len=16)
        model.save_pretrained(tmp_path)
        bare = library.GPT2LMHeadModel(model.config).eval()
        with pytest.raises(InputError, match="made without them"):
            bare(IDS)
        registry = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
        monkeypatch.delitem(registry._global_mapping, IMPLEMENTATION)
        with pytest.raises(ValueError, match=f'{IMPLEMENTATION}"` is not supported'):
            library.GPT2LMHeadModel(model.config)

    def test_too_short_when_it_generates(self, library: Any) -> None:
        model: Any = add_urpe(build("gpt2", library), max_len=N + 2)
        asked = {"do_sample": False, "pad_token_id": 0}
        assert model.generate(IDS, max_new_tokens=3, **asked).shape[1] == N + 3
        with pytest.raises(InputError, match=r"10 tokens.*max_len=9"):
            model.generate(IDS, max_new_tokens=4, **asked)

    @pytest.mark.parametrize("name", ["gpt2", "t5"])
    @pytest.mark.parametrize("other", ["sdpa", "eager"])
    def test_loading_with_another_implementation_is_refused(
        self, name: str, other: str, library: Any, tmp_path: Path
    ) -> None:
        """It would run, without gains: only a report of transformers would tell."""
        model: Any = add_urpe(build(name, library), max_len=16)
        scramble(model)
        model.save_pretrained(tmp_path)
        with pytest.raises(InputError, match=f"attn_implementation='{other}' was given"):
            type(model).from_pretrained(tmp_path, attn_implementation=other)
        with pytest.raises(InputError, match=f"attn_implementation='{other}' was given"):
            load_with_urpe(tmp_path, attn_implementation=other)
        plain: Any = build(name, library)  # others are made, saved and loaded as ever
        plain.save_pretrained(tmp_path / "plain")
        type(plain).from_pretrained(tmp_path / "plain", attn_implementation=other)

    def test_a_model_with_gains_on_a_part_is_not_saved(
        self, library: Any, tmp_path: Path
    ) -> None:
        """Its configuration is that of the whole, and knows nothing of the part."""
        model: Any = build("t5", library)
        add_urpe(model.encoder, max_len=16)
        with pytest.raises(InputError, match=r"encoder.* has one, its config.* no record"):
            model.save_pretrained(tmp_path)
        assert not list(tmp_path.iterdir())
        model.encoder.save_pretrained(tmp_path)
        assert hasattr(model.encoder.config, "everyformer_urpe")
        inner: Any = build("gpt2", library)
        add_urpe(inner.transformer, max_len=16, leave=["h.0.attn"])
        with pytest.raises(InputError, match="Call add_urpe on the model that is saved"):
            inner.save_pretrained(tmp_path)

    def test_files_without_gains_are_refused(self, library: Any, tmp_path: Path) -> None:
        model: Any = build("gpt2", library)
        model.save_pretrained(tmp_path)
        with pytest.raises(InputError, match="no record of gains"):
            load_with_urpe(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        config["everyformer_urpe"] = {"max_len": 16}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=r"has no transformer.urpe_gain.table"):
            load_with_urpe(tmp_path)

    @pytest.mark.parametrize("name", list(MODELS))
    def test_another_implementation_is_refused(self, name: str, library: Any) -> None:
        model: Any = add_urpe(build(name, library), max_len=16)
        scramble(model)
        before = call(model)
        for other in ("eager", "sdpa"):
            model.set_attn_implementation(other)
            with pytest.raises(InputError, match=f"'{other}', which knows of none"):
                call(model)
        model.set_attn_implementation(IMPLEMENTATION)
        assert torch.equal(call(model), before)

    def test_cross_attention_of_equal_lengths(self, library: Any) -> None:
        """The second sequence enters by it alone: its weights stay those of the softmax."""
        plain: Any = build("t5", library)
        model: Any = add_urpe(copy.deepcopy(plain), max_len=16)
        scramble(model)
        ours, theirs = (m.decoder.block[0].layer[1].EncDecAttention for m in (model, plain))
        x, y = (tokens(2, N, 16, seed=seed) for seed in (1, 2))
        out, wanted = (m(x, key_value_states=y)[0] for m in (ours, theirs))
        assert (out - wanted).abs().max() < 1e-6
        own = model.decoder.block[0].layer[0].SelfAttention
        with pytest.raises(InputError, match=r"\(2, 7, 16\): this T5Attention is cross"):
            own(x, key_value_states=y)

    def test_copies_pickles_and_halves(
        self, library: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model: Any = add_urpe(build("bert", library), max_len=16)
        scramble(model)
        pickled = pickle.dumps(model)
        registry = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
        monkeypatch.delitem(registry._global_mapping, IMPLEMENTATION)  # another process
        for twin in (pickle.loads(pickled), copy.deepcopy(model)):
            assert torch.equal(call(twin), call(model))
            scramble(twin)
            assert (call(twin) - call(model)).abs().max() > 1e-3
            twin.set_attn_implementation("sdpa")
            with pytest.raises(InputError, match="knows of none"):
                call(twin)
        fresh = add_urpe(build("bert", library), max_len=16)
        fresh.load_state_dict(model.state_dict())
        assert torch.equal(call(fresh), call(model))
        half = call(copy.deepcopy(model).to(torch.bfloat16))
        assert (half.double() - call(model)).abs().max() < 0.2
