"""What `speed_up` and the operator refuse, and leave as it was."""

from typing import Any

import pytest
import torch
from tests.layers.hugging_face.models import (
    IDS,
    inputs,
    paddings,
    small,
)
from tests.layers.hugging_face.paths import spied
from torch import Tensor, nn

import everyformer
from everyformer.errors import InputError
from everyformer.layers import add_urpe
from everyformer.layers.hugging_face import classes, switch
from everyformer.layers.hugging_face.function import everyformer_attention


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("transformers")


def fails(*given: Any) -> None:
    raise ZeroDivisionError


def test_unknown_classes(library: Any) -> None:
    config = library.DistilBertConfig(
        vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=32
    )
    model = library.DistilBertModel(config).eval()
    before, kinds = model(IDS[:, :5] % 50)[0], [type(m) for m in model.modules()]
    with pytest.raises(InputError, match=r"it has DistilBert\w+; known are .*T5Att"):
        everyformer.speed_up(model)
    with pytest.raises(InputError, match="it has DistilBert"):
        model.set_attn_implementation("everyformer")
    assert [type(m) for m in model.modules()] == kinds
    assert model.config is config
    assert torch.equal(model(IDS[:, :5] % 50)[0], before)
    with pytest.raises(InputError, match=r"was asked for, but .*DistilBert"):
        library.AutoModel.from_config(config, attn_implementation="everyformer")


def test_a_class_of_the_same_name(library: Any) -> None:
    """Only those of transformers themselves are known."""
    model = small("GPT2", library)
    kind = type(model.transformer.h[0].attn)
    model.transformer.h[0].attn.__class__ = type("GPT2Attention", (kind,), {})
    with pytest.raises(InputError, match="it has GPT2Attention; known are"):
        everyformer.speed_up(model)
    assert not switch.is_on(model)


def test_a_class_made_of_one_that_is_known(library: Any) -> None:
    """Whatever it is called, and if others of the model are known."""
    model = small("Bloom", library)
    changed = model.transformer.h[1].self_attention
    changed.__class__ = type("Mine", (type(changed),), {})
    with pytest.raises(InputError, match=r"it has Mine; known are .*BloomAttention"):
        everyformer.speed_up(model)
    assert not switch.is_on(model)


@pytest.mark.parametrize("name", ["T5", "Bloom", "GPT2", "Llama", "Deberta"])
def test_a_forward_that_was_replaced(
    name: str, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one module, or of the class: it does not know our masks."""
    model = small(name, library)
    module, _ = next(iter(classes.attention_of(model)))
    kind = type(module)
    own = kind.forward

    def doubled(self: Any, *args: Any, **kwargs: Any) -> Any:
        first, *others = own(self, *args, **kwargs)
        return (2 * first, *others)

    said = f"the forward of its {kind.__name__} was replaced"
    for held, new in ((module, doubled.__get__(module)), (kind, doubled)):
        with monkeypatch.context() as patch:
            patch.setattr(held, "forward", new)
            before = model(**inputs(model)).logits
            with pytest.raises(InputError, match=said):
                everyformer.speed_up(model)
            assert not switch.is_on(model)
            assert torch.equal(model(**inputs(model)).logits, before)
    everyformer.speed_up(model)


def test_heads_that_are_split_in_another_way(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = small("Falcon", library)
    module = model.transformer.h[0].self_attention
    kind = type(module)
    own = kind._split_heads

    def turned(self: Any, mixed: Tensor) -> tuple[Tensor, ...]:
        query, key, value = own(self, mixed)
        return query.flip(2), key, value

    for held, new in ((module, turned.__get__(module)), (kind, turned)):
        with monkeypatch.context() as patch:
            patch.setattr(held, "_split_heads", new)
            with pytest.raises(InputError, match="its _split_heads was replaced"):
                everyformer.speed_up(model)
            assert not switch.is_on(model)


def test_an_alibi_of_its_own(library: Any) -> None:
    model = small("Bloom", library)
    kind = type(model.transformer)
    rule = {"build_alibi_tensor": lambda *given: kind.build_alibi_tensor(*given)}  # pyright: ignore[reportUnknownLambdaType,reportUnknownMemberType]
    model.transformer.__class__ = type("Mine", (kind,), rule)
    with pytest.raises(InputError, match="Mine has a build_alibi_tensor of its own"):
        everyformer.speed_up(model)
    assert not switch.is_on(model)


def test_models_with_gains(library: Any) -> None:
    """They run on the operator already; others can get gains later."""
    model = small("T5", library)
    before = model(**inputs(model)).logits
    everyformer.speed_up(model)
    add_urpe(model, max_len=32)
    with spied() as ways:
        ours = model(**inputs(model)).logits
    assert ways == ["toeplitz_attention"] * 6
    assert (ours - before).abs().max() < 1e-5 * before.abs().max()
    with pytest.raises(InputError, match="it has gains"):
        everyformer.speed_up(model)
    with pytest.raises(InputError, match="it has gains"):
        model.set_attn_implementation("everyformer")
    assert torch.equal(model(**inputs(model)).logits, ours)

    with pytest.raises(InputError, match=r"has gains \(add_urpe\), of which.*Load"):
        everyformer.restore(model)
    assert torch.equal(model(**inputs(model)).logits, ours)


def test_a_model_that_lost_its_gains(library: Any) -> None:
    """Made of a configuration with gains, it would run without them."""
    model = add_urpe(small("GPT2", library), max_len=32)
    bare = type(model)(model.config)
    with pytest.raises(InputError, match=r"made without them; from_pretrained puts"):
        everyformer.speed_up(bare)
    with pytest.raises(InputError, match=r"made without them\. Load"):
        bare(IDS)


def test_a_call_that_fails_leaves_nothing_behind(library: Any) -> None:
    """One that wants weights: the next one takes the operator again."""
    model = small("GPT2", library)
    everyformer.speed_up(model)
    with pytest.raises((IndexError, RuntimeError)):
        model(IDS + 1000, output_attentions=True)
    with spied() as ways:
        model(IDS)
    assert set(ways) == {"toeplitz_attention"}
    handle = model.register_forward_pre_hook(fails, prepend=True)
    with pytest.raises(ZeroDivisionError):
        model(IDS, output_attentions=True)
    handle.remove()
    assert len(model(IDS, output_attentions=True).attentions) == 2


@pytest.mark.unhooked
def test_what_is_no_model() -> None:
    for wrong in (nn.Linear(2, 2), "t5-base", None):
        with pytest.raises(InputError, match="not a model of transformers"):
            everyformer.speed_up(wrong)  # type: ignore[arg-type]


def test_other_releases(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("T5", library)
    kind = classes.original(model.encoder.block[0].layer[0].SelfAttention)
    monkeypatch.setattr(kind, "compute_bias", len)
    with pytest.raises(InputError, match=r"makes its bias elsewhere; use 5\.22"):
        everyformer.speed_up(model)
    assert not switch.is_on(model)


def test_nan_in_the_bias(library: Any) -> None:
    model = small("T5", library)
    table = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias
    table.weight.data[3, 1] = float("nan")
    with pytest.raises(InputError, match=r"decoder.*relative_attention_bias.*NaN"):
        everyformer.speed_up(model)
    assert not switch.is_on(model)


@pytest.mark.parametrize("name", ["T5", "Bloom", "Bert", "GPT2"])
def test_masks_of_wrong_shape(name: str, library: Any) -> None:
    model = small(name, library)
    everyformer.speed_up(model)
    before = model(**inputs(model)).logits
    n = IDS.shape[1]
    wrong = [(2, n - 2), (2, n + 3), (3, n)]
    if name == "GPT2":  # which takes any shape of as many numbers
        wrong = wrong[:2]
    for shape in wrong:
        seen = torch.ones(shape, dtype=torch.long)
        seen[-1, 0] = 0
        with pytest.raises((InputError, RuntimeError, ValueError)) as told:
            model(**inputs(model, seen))
        assert told.type is InputError
        assert "attention_mask" in str(told.value)
    pairs = (((2, 1, n, n + 1), torch.bool), ((2, 1, n, n), torch.long))
    for shape, dtype in () if name == "Bloom" else pairs:  # it takes no such masks
        with pytest.raises(InputError, match=r"attention_mask has shape .*dtype"):
            model(**inputs(model, torch.ones(shape, dtype=dtype)))
    assert torch.equal(model(**inputs(model)).logits, before)


def test_masks_of_all_pairs(library: Any) -> None:
    """As bools and as numbers, as transformers takes them."""
    n = IDS.shape[1]
    past = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
    seen: Any = paddings()["right"]
    past = past.expand(2, 1, n, n) & (seen[:, None, None, :] > 0)
    added = torch.zeros(past.shape).masked_fill(~past, torch.finfo(torch.float32).min)
    for name in ("GPT2", "Llama", "Falcon"):
        model = small(name, library)
        theirs = model(IDS, attention_mask=added).logits
        everyformer.speed_up(model)
        for mask in (added, past):
            ours = model(IDS, attention_mask=mask).logits
            assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def test_mixed_devices() -> None:
    q = torch.ones(1, 2, 3, 4)
    module = nn.Module()
    seen = torch.ones(1, 3, dtype=torch.bool, device="meta")
    with pytest.raises(InputError, match="tensors lie on cpu, meta; use one device"):
        everyformer_attention(module, q, q, q, seen)


def test_what_other_models_ask_for() -> None:
    q = torch.ones(1, 2, 3, 4)
    with pytest.raises(InputError, match=r"Module asks for softcap.*eager"):
        everyformer_attention(nn.Module(), q, q, q, None, softcap=30.0)


def test_more_tokens_than_mpt_has(library: Any) -> None:
    model = small("Mpt", library)
    model.config.max_seq_len = 8
    everyformer.speed_up(model)
    with pytest.raises(InputError, match=r"13 tokens exceed max_seq_len=8"):
        model(IDS)
    with pytest.raises(InputError, match=r"9 tokens exceed max_seq_len=8"):
        model.generate(IDS[:, :6], max_new_tokens=6, do_sample=False)
