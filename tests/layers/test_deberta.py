"""DeBERTa: the layer by the operator, and the models of transformers adapted to it."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from tests.ops.operators import gap
from tests.ops.references import disentangled_attention_reference
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from everyformer.errors import InputError
from everyformer.layers import (
    Deberta,
    LogBuckets,
    RelativeAttention,
    T5Buckets,
)
from everyformer.layers import attention as attention_module
from everyformer.layers.hugging_face import deberta
from everyformer.layers.hugging_face.deberta import adapt, restore
from everyformer.layers.hugging_face.swapping import Swapped
from everyformer.ops.disentangled_attention import chunked

transformers: Any = pytest.importorskip("transformers")

LAYERS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "table longer than n": ({"max_len": 16}, {}, 9),
    "one token": ({"max_len": 16}, {}, 1),
    "clipped": ({"max_len": 4, "clamp": True}, {}, 30),
    "buckets": ({"buckets": LogBuckets(8, 20)}, {}, 30),
    "buckets longer than n": ({"buckets": LogBuckets(8, 20)}, {}, 5),
    "scale": ({"max_len": 16}, {"scale": 0.7}, 9),
}


def layer_with(encoding: dict[str, Any], **settings: Any) -> RelativeAttention:
    layer = RelativeAttention(8, 2, encoding=Deberta(2, 4, **encoding), **settings)
    randomise(layer.double())
    return layer


def called(layer: RelativeAttention, **call: Any) -> bool:
    """Whether the operator runs."""
    operator = attention_module.disentangled_attention
    with mock.patch.object(
        attention_module, "disentangled_attention", side_effect=operator
    ) as spy:
        layer(tokens(2, 5, 8), **call)
    return spy.called


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_by_the_operator(name: str) -> None:
    """Outputs and all gradients are those of plain torch, with some tokens padded."""
    encoding, settings, n = LAYERS[name]
    layer = layer_with(encoding, **settings)
    assert called(layer)
    x, padded = tokens(2, n, 8), some_padding(2, n)
    found: list[list[Tensor]] = []
    for kind in ("auto", "reference"):
        layer.implementation = kind  # type: ignore[assignment]
        given = x.clone().requires_grad_()
        out = layer(given, key_padding_mask=padded)
        found.append(
            [out, *torch.autograd.grad(out.sin().sum(), [given, *layer.parameters()])]
        )
    assert gap(*found) < 1e-12


OTHERWISE: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gain": ({"max_len": 8}, {"gain": True}, {}),
    "causal": ({"max_len": 8}, {"causal": True}, {}),
    "reference": ({"max_len": 8}, {"implementation": "reference"}, {}),
    "weights": ({"max_len": 8}, {}, {"need_weights": True}),
    "buckets out of order": ({"buckets": T5Buckets(8, 16)}, {}, {}),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_the_operator_does_not_compute_runs_in_plain_torch(name: str) -> None:
    encoding, settings, call = OTHERWISE[name]
    assert not called(layer_with(encoding, **settings), **call)


def test_the_layer_after_inference_mode() -> None:
    """What is kept from there has to serve training, too."""
    layer = layer_with({"buckets": LogBuckets(6, 9)})
    with torch.inference_mode():
        layer(tokens(1, 21, 8))
    layer(tokens(1, 21, 8)).sum().backward()


@pytest.mark.compile
def test_the_layer_compiles() -> None:
    torch.compiler.reset()
    layer = layer_with({"buckets": LogBuckets(8, 20)})
    x = tokens(2, 12, 8)
    fast: Any = torch.compile(layer, fullgraph=True)
    found: list[list[Tensor]] = []
    for function in (fast, layer):
        out = function(x)
        found.append([out, *torch.autograd.grad(out.sin().sum(), [*layer.parameters()])])
    assert gap(*found) < 1e-12


@pytest.mark.compile
def test_an_adapted_model_compiles() -> None:
    """As one graph, as the original does."""
    torch.compiler.reset()
    model, given = made(2, V3), batch(20)
    adapt(model)
    wanted = gradients(model, given)
    compiled: Any = torch.compile(model, fullgraph=True)
    model.zero_grad()
    logits = compiled(**given).logits
    logits.sin().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert off({"logits": logits.detach(), **found}, wanted) < 1e-5


BASE: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 64, "max_position_embeddings": 512, "type_vocab_size": 0,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "relative_attention": True, "position_biased_input": False, "initializer_range": 0.05,
    "pos_att_type": ["p2c", "c2p"],
}  # fmt: skip
"""Two layers with heads of size 64."""

V3: dict[str, Any] = {
    "position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm",
}  # fmt: skip

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "v1": (1, {}),
    "v1, content to position": (1, {"pos_att_type": ["c2p"]}),
    "v1, position to content": (1, {"pos_att_type": ["p2c"]}),
    "v1, clipped": (1, {"max_relative_positions": 12}),
    "v2": (2, {"position_buckets": 256}),
    "v2, exact offsets": (2, {"position_buckets": -1, "max_relative_positions": 20}),
    "v2, content to position": (2, {"position_buckets": 16, "pos_att_type": ["c2p"]}),
    "v2, few buckets": (2, {"position_buckets": 8, "max_relative_positions": 20}),
    "v2-xlarge": (2, {**V3, "conv_kernel_size": 3, "conv_act": "gelu"}),
    "v3": (2, V3),
    "v3, position to content": (2, {**V3, "pos_att_type": ["p2c"]}),
    "v3, small buckets": (2, {**V3, "position_buckets": 8}),
}


def made(version: int, settings: dict[str, Any], **more: Any) -> Any:
    """A masked language model with random weights."""
    torch.manual_seed(0)
    name = "Deberta" if version == 1 else "DebertaV2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit, which is deprecated
        config = getattr(transformers, f"{name}Config")(**BASE | settings | more)
        model = getattr(transformers, f"{name}ForMaskedLM")(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.05)
    return model


def batch(n: int = 45) -> dict[str, Tensor]:
    """Sequences padded on the right, on the left, nowhere, and everywhere."""
    random = torch.Generator().manual_seed(0)
    mask = torch.ones(4, n, dtype=torch.long)
    mask[0, n // 2 :] = 0
    mask[1, : n // 3] = 0
    mask[3] = 0
    ids = torch.randint(1, 40, (4, n), generator=random)
    return {"input_ids": ids, "attention_mask": mask}


def gradients(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The logits, and the gradient of each parameter."""
    model.zero_grad()
    logits = model(**given).logits
    logits.sin().sum().backward()
    there = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **{name: x.clone() for name, x in there.items()}}


def off(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest number of all gradients or logits.

    Gradients that vanish but for rounding (those of biases of positions that meet all
    keys alike) have no size of their own.
    """
    assert found.keys() == wanted.keys()
    size = max(float(x.abs().max()) for name, x in wanted.items() if name != "logits")
    worst = (found["logits"] - wanted["logits"]).abs().max() / wanted["logits"].abs().max()
    slopes = (
        float((found[name] - x).abs().max()) / size
        for name, x in wanted.items()
        if name != "logits"
    )
    return max(float(worst), *slopes)


@pytest.fixture
def operator_calls() -> Iterator[mock.Mock]:
    operator = deberta.disentangled_attention
    with mock.patch.object(deberta, "disentangled_attention", side_effect=operator) as spy:
        yield spy


@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_same_logits_and_gradients(
    name: str, operator_calls: mock.Mock
) -> None:
    """At padded tokens, too; and the original ones after all, bit by bit."""
    model, given = made(*MODELS[name]), batch()
    wanted = gradients(model, given)
    state = list(model.state_dict())
    adapt(model)
    assert off(gradients(model, given), wanted) < 1e-5
    assert operator_calls.call_count == 2
    assert list(model.state_dict()) == state
    restore(model)
    again = gradients(model, given)
    assert all(torch.equal(again[key], wanted[key]) for key in wanted)
    assert operator_calls.call_count == 2


ORIGINAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weights": ({}, {"output_attentions": True}),
    "no positions": ({"relative_attention": False}, {}),
    "no terms": ({"pos_att_type": []}, {}),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ORIGINAL)
def test_what_needs_the_original_code_gets_it(
    name: str, version: int, operator_calls: mock.Mock
) -> None:
    settings, call = ORIGINAL[name]
    more = V3 if version == 2 else {}
    model, given = made(version, more, **settings).train(), batch() | call
    found: list[Any] = []
    for change in (restore, adapt):
        change(model)
        torch.manual_seed(1)
        found.append(model(**given))
    assert torch.equal(found[0].logits, found[1].logits)
    if "output_attentions" in call:
        assert torch.equal(found[0].attentions[1], found[1].attentions[1])
    assert not operator_calls.called


@pytest.mark.parametrize("version", [1, 2])
def test_a_mask_for_each_query_needs_the_original_code(version: int) -> None:
    encoder = made(version, V3 if version == 2 else {}).deberta.encoder
    x, mask = torch.randn(2, 9, 128), torch.ones(2, 9, 9).tril()
    wanted = encoder(x, mask).last_hidden_state
    adapt(encoder)
    assert torch.equal(encoder(x, mask).last_hidden_state, wanted)


def test_dropout_of_positions_draws_the_same_numbers(operator_calls: mock.Mock) -> None:
    model, given = made(2, V3, hidden_dropout_prob=0.3).train(), batch()
    found: list[dict[str, Tensor]] = []
    for change in (restore, adapt):
        change(model)
        torch.manual_seed(1)
        found.append(gradients(model, given))
    assert off(*found) < 1e-5
    assert operator_calls.called


def test_dropped_weights_are_those_of_the_operator() -> None:
    """In a model and in a layer: the reference with the same seed has the same numbers."""
    model = made(2, V3, attention_probs_dropout_prob=0.3).train()
    adapt(model)
    layer = layer_with({"max_len": 16}, dropout=0.3)

    def plain(*args: Tensor, **options: Any) -> Tensor:
        if "seed" not in options:
            options["seed"] = torch.randint(2**63 - 1, (1,))
        return disentangled_attention_reference(*args, **options)  # type: ignore[arg-type]

    def results() -> list[Any]:
        torch.manual_seed(2)
        return [*gradients(model, batch()).values(), layer(tokens(2, 9, 8))]

    found = results()
    with (
        mock.patch.object(deberta, "disentangled_attention", plain),
        mock.patch.object(attention_module, "disentangled_attention", plain),
    ):
        assert gap(found, results()) < 1e-5
    model.eval()
    layer.eval()
    assert gap(found[:1], results()[:1]) > 1e-2
    assert gap(found[-1:], results()[-1:]) > 1e-2


def test_copies_pickles_and_checkpointing() -> None:
    model, given = made(2, V3).eval(), batch()
    adapt(model)
    wanted = model(**given).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        core = other.deberta.encoder.layer[0].attention.self
        with torch.no_grad():
            core.query_proj.weight.zero_()
            assert not torch.allclose(other(**given).logits, wanted)
            assert torch.equal(model(**given).logits, wanted)
    with torch.inference_mode():  # what is kept from there serves training, too
        model(**batch(31))
    gradients(model, batch(31))
    plain = gradients(model.train(), given)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again = gradients(model, given)
    assert all(torch.equal(again[key], plain[key]) for key in plain)


@pytest.mark.parametrize("version", [1, 2])
def test_autocast(version: int) -> None:
    """Where transformers refuses version 1: its bias of queries stays in float32."""
    model, given = made(version, V3 if version == 2 else {}), batch(20)
    wanted = gradients(model, given)
    adapt(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradients(model, given)
    assert off({name: x.float() for name, x in found.items()}, wanted) < 3e-2


def test_half_precision() -> None:
    model, given = made(2, V3).bfloat16(), batch()
    wanted = made(2, V3)(**given).logits
    theirs = model(**given).logits
    adapt(model)
    ours = model(**given).logits
    error, other = ((x - wanted).abs().max() / wanted.abs().max() for x in (ours, theirs))
    assert error < max(2 * other, 2e-2)


def test_unknown_models_are_refused_and_stay_as_they_are() -> None:
    with pytest.raises(InputError, match="Linear holds no encoder of DeBERTa; known are"):
        adapt(nn.Linear(2, 2))
    model = made(2, V3)
    changed = nn.Identity()
    model.deberta.encoder.layer[1].attention.self = changed
    with pytest.raises(InputError, match="of which nothing is known"):
        adapt(model)
    assert not any(isinstance(part, Swapped) for part in model.modules())


class Sizes(TorchDispatchMode):
    """Whether a tensor has two axes of a length, or as many entries."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.square, self.largest = n, False, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes() // 4)
                self.square |= list(x.shape).count(self.n) > 1
        return found


@pytest.mark.parametrize("version", [1, 2])
def test_no_model_makes_a_matrix_of_tokens(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward of the whole model; and the original does, so it can fail."""
    monkeypatch.setattr(chunked, "CHUNK", 64)
    monkeypatch.setattr(chunked, "STEP_ENTRIES", 1)
    n, small = 521, {"vocab_size": 9, "max_relative_positions": 24}
    more = {"position_buckets": 8} if version == 2 else {}
    model = made(version, more, **small)
    given = {name: x[:1] % 9 for name, x in batch(n).items()}
    with Sizes(n) as theirs:
        gradients(model, given)
    adapt(model)
    with Sizes(n) as ours:
        gradients(model, given)
    assert theirs.square
    assert not ours.square
    assert ours.largest < n * n < theirs.largest
