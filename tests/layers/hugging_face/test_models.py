"""Every class that is supported: the same numbers as transformers, whatever is asked."""

import copy
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import hugging_face_page
from tests.layers.hugging_face.models import (
    CASES,
    IDS,
    PAD,
    inputs,
    paddings,
    real,
    results,
    small,
)
from torch import Tensor

import everyformer
from everyformer.layers.hugging_face.classes import CLASSES
from everyformer.layers.hugging_face.switch import is_on

CLOSE = 1e-5
"""Largest relative deviation in float32."""

TOKENS = 64


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("transformers")


def apart(x: Tensor, y: Tensor) -> float:
    return float((x - y).detach().abs().max() / y.detach().abs().max())


def assert_same(
    ours: tuple[Tensor, Any],
    theirs: tuple[Tensor, Any],
    exact: Callable[[], tuple[Tensor, Any]] | None = None,
) -> None:
    """Logits, and gradients in the norm; those that are 0 in exact arithmetic by all.

    Gradients in which large terms cancel deviate more from transformers, which is no
    nearer to `exact`, the model in float64, then.
    """
    assert apart(ours[0], theirs[0]) < CLOSE
    assert ours[1].keys() == theirs[1].keys()
    largest = max(float(grad.norm()) for grad in theirs[1].values())
    far = {
        name: grad
        for name, grad in theirs[1].items()
        if not off(ours[1][name], grad) < CLOSE * (float(grad.norm()) + 1e-3 * largest)
    }
    if exact is None or not far:
        assert not far
        return
    truth = exact()[1]
    for name, grad in far.items():
        assert off(ours[1][name], truth[name]) < 2 * off(grad, truth[name]), name


def off(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm())


ALIKE = {"MT5", "Roberta", "XLMRoberta", "Mistral", "Qwen2"}
"""Attention as in T5, Bert and Llama: logits and gradients run always, the rest is slow."""


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    kept = [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in names]
    return pytest.mark.parametrize("name", kept)


EVERY = each(CASES)
GENERATING = each(n for n, c in CASES.items() if c.generates)
WEIGHING = each(n for n, c in CASES.items() if c.weights)


class TestEveryClass:
    @pytest.mark.parametrize("name", CASES)
    def test_logits_and_gradients(self, name: str, library: Any) -> None:
        model = real(name, library)
        kept = {key: part.clone() for key, part in model.state_dict().items()}
        some = {key: paddings()[key] for key in ("nothing", "left")}
        theirs = {key: results(model, seen) for key, seen in some.items()}
        report = everyformer.speed_up(model)
        assert str(report).startswith(type(model).__name__)
        assert sum(report.modules.values()) in (2, 6)
        for key, seen in some.items():
            assert_same(results(model, seen), theirs[key], partial(exact, model, seen))
        assert everyformer.restore(model) is model
        assert all(torch.equal(kept[key], x) for key, x in model.state_dict().items())
        again = results(model)
        assert torch.equal(again[0], theirs["nothing"][0])
        assert all(torch.equal(again[1][key], x) for key, x in theirs["nothing"][1].items())

    @EVERY
    def test_other_paddings(self, name: str, library: Any) -> None:
        model = small(name, library)
        for padded in ("right", "holes"):
            seen = paddings()[padded]
            theirs = results(model, seen)
            everyformer.speed_up(model)
            assert_same(results(model, seen), theirs, partial(exact, model, seen))
            everyformer.restore(model)

    @GENERATING
    def test_generated_tokens(self, name: str, library: Any) -> None:
        case = CASES[name]
        model = small(name, library).to(case.dtype)
        seen = paddings()["left"]
        few = TOKENS // 6
        asked: dict[str, dict[str, Any]] = {
            "greedy": {"max_new_tokens": few},
            "sampled": {"do_sample": True, "max_new_tokens": few},
            "beams": {"num_beams": 3, "max_new_tokens": few},
        }
        if case.static:
            more = {"cache_implementation": "static", "disable_compile": True}
            asked["static"] = {**more, "max_new_tokens": few}
        theirs = {key: generated(model, seen, **more) for key, more in asked.items()}
        everyformer.speed_up(model)
        for key, more in asked.items():
            assert torch.equal(generated(model, seen, **more), theirs[key]), key
        cached = generated(model, seen)
        assert cached.shape[1] >= TOKENS
        assert torch.equal(generated(model, seen, use_cache=False), cached)

    @EVERY
    def test_saved_loaded_and_copied(self, name: str, library: Any, tmp_path: Path) -> None:
        model = small(name, library)
        theirs = model(**inputs(model)).logits
        everyformer.speed_up(model)
        ours = model(**inputs(model)).logits
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(**inputs(model)).logits, ours)
            everyformer.restore(twin)
            assert torch.equal(twin(**inputs(model)).logits, theirs)
        model.save_pretrained(tmp_path)
        plain = type(model).from_pretrained(tmp_path).eval()
        assert not is_on(plain)
        assert torch.equal(plain(**inputs(model)).logits, theirs)
        loaded = type(model).from_pretrained(tmp_path, attn_implementation="everyformer")
        assert is_on(loaded)
        assert torch.equal(loaded.eval()(**inputs(model)).logits, ours)
        assert torch.equal(everyformer.restore(loaded)(**inputs(model)).logits, theirs)

    @EVERY
    def test_a_step_of_lora(self, name: str, library: Any) -> None:
        peft = pytest.importorskip("peft")
        found: list[tuple[Tensor, Any]] = []
        for fast in (False, True):
            model = small(name, library).double()
            if fast:
                everyformer.speed_up(model)
            torch.manual_seed(3)
            lora = peft.LoraConfig(
                r=2, target_modules=list(CASES[name].lora), fan_in_fan_out=name == "GPT2"
            )
            model = peft.get_peft_model(model, lora)
            steps = torch.optim.SGD(model.parameters(), lr=0.01)
            model.train()
            results(model)
            steps.step()
            found.append(results(model))
        assert_same(found[1], found[0])
        assert all("lora" in key for key in found[0][1])

    @EVERY
    def test_gradient_checkpointing(self, name: str, library: Any) -> None:
        model = small(name, library).train()
        theirs = results(model)
        everyformer.speed_up(model)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        assert_same(results(model, use_cache=False), theirs)

    @WEIGHING
    def test_weights(self, name: str, library: Any) -> None:
        model = small(name, library)
        plain = copy.deepcopy(model)
        plain.config._attn_implementation = "eager"
        for part in plain.modules():
            if isinstance(part, library.PreTrainedModel):
                part.config._attn_implementation = "eager"
        everyformer.speed_up(model)
        asked = {**inputs(model), "output_attentions": True}
        ours, theirs = model(**asked), plain(**asked)
        kinds = [key for key, found in theirs.items() if "attentions" in key and found]
        assert kinds
        for key in kinds:
            assert len(ours[key]) == len(theirs[key]) == 2
            for x, y in zip(ours[key], theirs[key], strict=True):
                assert apart(x, y) < CLOSE
        for key in kinds:  # and no longer than for this call
            after = model(**inputs(model)).get(key)
            assert not after or after[0] is None


def exact(model: Any, seen: Tensor | None) -> tuple[Tensor, Any]:
    """Of the original in float64."""
    return results(everyformer.restore(copy.deepcopy(model)).double(), seen)


def generated(model: Any, seen: Tensor | None, **more: Any) -> Tensor:
    torch.manual_seed(5)
    settings = {"do_sample": False, "max_new_tokens": TOKENS, "pad_token_id": PAD, **more}
    return model.generate(IDS, attention_mask=seen, **settings)


def test_the_page_has_every_class(library: Any) -> None:
    wanted = [type(small(name, library)).__name__ for name in CASES]
    assert hugging_face_page.names_in_page() == wanted
    tested = {
        hugging_face_page.place(m) for n in CASES for m in small(n, library).modules()
    }
    left = set(CLASSES) - tested
    assert all("CrossAttention" in name for name in left), left
