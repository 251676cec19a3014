"""What a config refuses, before anything is trained."""

from typing import Any

import pytest
import torch

from everyformer.errors import TrainingError
from everyformer.train.config import TrainConfig, check
from everyformer.train.schedule import learning_rate

CPU = torch.device("cpu")
GOOD: dict[str, Any] = {"steps": 10, "batch": 8, "lr": 0.1}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"batch": 7}, "shared evenly by 2 processes x 1 accumulated parts; use 8"),
        ({"batch": 10, "accumulation": 3}, "x 3 accumulated parts; use 12"),
        ({"evaluation_batch": 0}, "evaluation_batch=0 must be at least 1"),
        ({"warmup": 10}, "leaves none of 10 steps"),
        ({"lr": 0.0}, "lr=0.0 must be positive"),
        ({"precision": "fp8"}, "precision='fp8' is unknown; use one of fp32, bf16"),
        ({"stop_at": 0.9}, "set evaluate_every"),
        ({"decay": "exponential"}, "decay='exponential' is unknown"),
        ({"clip": -1.0}, "clip=-1.0 must be positive"),
        ({"lr": "abc"}, "lr='abc' should be of type int or float"),
        ({"steps": 7.5}, "steps=7.5 should be of type int"),
        ({"compile": 1}, "compile=1 should be of type bool"),
        ({"betas": (0.9,)}, "betas=(0.9,) must be two numbers"),
        ({"stop_at": 2, "evaluate_every": 1}, "stop_at=2 is no accuracy"),
        ({"end_lr": 0.01}, "end_lr=0.01 has no meaning for decay='linear'"),
        ({"end_lr": 0.2, "decay": "cosine"}, "end_lr=0.2 must lie between 0 and lr=0.1"),
    ],
)
def test_what_cannot_work_is_refused(change: dict[str, Any], told: str) -> None:
    check(TrainConfig(**GOOD), 2, CPU)
    with pytest.raises(TrainingError, match="cannot be trained") as refused:
        check(TrainConfig(**GOOD | change), 2, CPU)
    assert told in str(refused.value)


def test_all_reasons_at_once() -> None:
    with pytest.raises(TrainingError) as refused:
        check(TrainConfig(steps=0, batch=7, lr=-1.0), 2, CPU)
    assert str(refused.value).count(";") >= 3


def test_json_and_back() -> None:
    config = TrainConfig(**GOOD, betas=(0.8, 0.9), stop_at=0.5, evaluate_every=1)
    assert TrainConfig.from_json(config.to_json()) == config
    with pytest.raises(TrainingError, match="no learning_rate"):
        TrainConfig.from_json(GOOD | {"learning_rate": 1.0})


def test_the_rate_ends_at_nearly_nothing() -> None:
    linear = TrainConfig(steps=100, batch=1, lr=1.0, warmup=10)
    rates = [learning_rate(linear, step) for step in range(100)]
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(1 / 90)
    constant = TrainConfig(steps=100, batch=1, lr=1.0, warmup=10, decay="constant")
    assert learning_rate(constant, 99) == 1.0
