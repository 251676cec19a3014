"""On a GPU: captured and compiled updates of the sparse experiments."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from everyformer.data.documents import Documents
from everyformer.data.packs.excerpt import excerpt
from everyformer.experiments.sparse_arms import Arm
from everyformer.experiments.sparse_lm.sizes import SCALES
from everyformer.train.loop import Outcome, train
from everyformer.train.objectives.next_token import TokenLosses

pytestmark = pytest.mark.gpu


def language_run(name: str, width: int, n: int = 64, **more: Any) -> Outcome:
    scale, pack = SCALES["reduced"], excerpt("enwiki-wp")
    model = replace(
        scale.model, vocab_size=pack.vocabulary + -pack.vocabulary % 64, max_len=n,
        layers=2,
    )  # fmt: skip
    changes: dict[str, Any] = {
        "steps": 12, "batch": 16, "warmup": 2, "log_every": 1, "evaluate_every": 0,
        "checkpoint_every": 0,
    }  # fmt: skip
    config = replace(scale.train, **(changes | more))
    task = Documents(pack, n, 0, {"nats": n // 2, "without_context": 0}, most=4)
    arm = Arm(name, width, n, causal=True)
    return train(lambda: TokenLosses(arm.encoder(model)), task, config)


def losses(outcome: Outcome) -> list[float]:
    return [line["loss"] for line in outcome.curve if "loss" in line]


@pytest.mark.parametrize(("name", "width"), [("strided-multihead", 8), ("random", 16)])
def test_a_captured_compiled_update_is_that_of_python(name: str, width: int) -> None:
    plain = language_run(name, width, record=False, compile=False)
    captured = language_run(name, width)
    assert losses(captured) == pytest.approx(losses(plain), abs=0.02)
    assert captured.test["nats"].mean_sampled == pytest.approx(
        plain.test["nats"].mean_sampled, abs=0.02
    )


def test_arms_share_compiled_code() -> None:
    """The mask is data: another arm compiles nothing anew."""
    language_run("star", 8)
    counters = torch._dynamo.utils.counters["stats"]  # pyright: ignore
    before = counters["unique_graphs"]
    started = time.monotonic()
    language_run("fixed-multihead", 8)
    language_run("dense", 0)
    assert counters["unique_graphs"] == before, f"{time.monotonic() - started:.0f} s"
