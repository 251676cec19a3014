"""Runs with `torch.compile`; in the second call of the tests, without the shape hook."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.train.ragged import CONFIG, Ragged
from tests.train.runs import losses, tiny_run
from torch._dynamo.utils import counters

from everyformer.data.batch import Draw
from everyformer.data.packs.excerpt import words_excerpt
from everyformer.data.streams import Reading, Streams
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.transformer_xl import TransformerXLConfig, TransformerXLModel
from everyformer.train.compiled import compile_parts, many_variants
from everyformer.train.objectives.masked import MaskedLanguage
from everyformer.train.objectives.next_word import NextWord

pytestmark = [
    pytest.mark.compile,
    # torch.compile asks non-leaf tensors for their gradients, and warns of itself.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


@pytest.mark.rows(1)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_blocks_give_the_same_losses(precision: str) -> None:
    """The code that inductor makes of forward and backward."""
    more: dict[str, Any] = {"precision": precision, "steps": 6, "warmup": 1}
    plain, compiled = (
        losses(tiny_run(compile=compile, **more).curve) for compile in (False, True)
    )
    assert compiled == pytest.approx(plain, abs=1e-5 if precision == "fp32" else 2e-2)


def test_equal_blocks_of_later_models_are_not_compiled_again() -> None:
    """Four mixers x three lengths pass dynamo's own limit of 8, and none is made twice."""
    counts: list[int] = []
    for _ in range(2):
        for mixer in ("attention", "bilinear", "light", "average"):
            config = replace(CONFIG, mixers=mixer, shorter=True, filter_length=3, filters=2)
            objective = MaskedLanguage(Encoder(config))
            compile_parts(objective, backend="aot_eager")
            with many_variants():
                for n in (4, 6, 8):
                    batch = Ragged().batch("train", Draw(torch.arange(5), n))
                    before = counters["stats"]["unique_graphs"]
                    objective(batch).sum().backward()
                    counts.append(counters["stats"]["unique_graphs"] - before)
    assert counts[:12] == [2, *[1] * 11], "one for each block, one for the head"
    assert counts[12:] == [0] * 12


def test_another_choice_of_kernels_is_compiled_anew() -> None:
    """Dynamo would hand the code of one choice to the other: it has no guard on it."""
    batch = Ragged().batch("train", Draw(torch.arange(5), 8))
    counts: list[int] = []
    for cudnn in (False, True, True, False):
        objective = MaskedLanguage(Encoder(CONFIG))
        compile_parts(objective, backend="aot_eager", cudnn=cudnn)
        before = counters["stats"]["unique_graphs"]
        with many_variants():
            objective(batch).sum().backward()
        counts.append(counters["stats"]["unique_graphs"] - before)
    assert counts[1:] == [2, 0, 2]


def test_compiled_streams_give_the_same_losses() -> None:
    """A stack with memory, and the next model of the kind shares its code."""
    task = Streams(words_excerpt(), 4, 16, 0, (Reading("nats", 8, 8),))
    model = TransformerXLConfig(
        vocab_size=task.pack.vocabulary, max_len=32, dim=16, layers=2, heads=2, head_dim=8,
        ffn=32, gain="shared", dropout=0.0,
    )  # fmt: skip
    found: list[list[float]] = []
    made: list[int] = []
    for compiled in (False, True, True):
        torch.manual_seed(0)
        objective = NextWord(
            TransformerXLModel(model), streams=4, places=16, readings=task.readings
        )
        if compiled:
            compile_parts(objective)
        before = counters["stats"]["unique_graphs"]
        with many_variants():
            told: list[float] = []
            for step in range(3):
                batch = task.batch("train", task.draw(step, 4, 0, 1, torch.device("cpu")))
                loss = objective(batch).sum()
                loss.backward()
                told.append(loss.item())
        found.append(told)
        made.append(counters["stats"]["unique_graphs"] - before)
    assert found[1] == found[2] == pytest.approx(found[0], rel=1e-6)
    assert made == [0, 2, 0]


def test_a_whole_stack_with_memory_is_one_graph() -> None:
    """Its refusals, too: torch.compile knows no `list[str]()`."""
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=20, max_len=16, dim=16, layers=2, heads=2, head_dim=8, ffn=16,
        gain="shared", dropout=0.0,
    )  # fmt: skip
    model, tokens = TransformerXLModel(config), torch.randint(20, (2, 6))
    found: list[list[torch.Tensor]] = []
    for run in (model.states, torch.compile(model.states, fullgraph=True)):
        states, _ = run(tokens, model.no_memory(batch=2, places=4))
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        slopes = torch.autograd.grad(
            states.square().sum(), weights, allow_unused=True, materialize_grads=True
        )
        found.append([states.detach(), *slopes])
    for plain, compiled in zip(*found, strict=True):
        assert (compiled - plain).abs().max() <= 1e-4 * max(1.0, float(plain.abs().max()))
    assert any(slope.any() for slope in found[0][1:])
