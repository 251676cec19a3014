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
        ({"precision": "fp8"}, "precision='fp8' is unknown; use one of fp32, tf32, bf16"),
        ({"stop_at": 0.9}, "set evaluate_every"),
        ({"decay": "exponential"}, "decay='exponential' is unknown"),
        ({"clip": -1.0}, "clip=-1.0 must be positive"),
        ({"lr": "abc"}, "lr='abc' should be of type int or float"),
        ({"steps": 7.5}, "steps=7.5 should be of type int"),
        ({"compile": 1}, "compile=1 should be of type bool"),
        ({"betas": (0.9,)}, "betas=(0.9,) must be two numbers"),
        ({"stop_at": 2, "evaluate_every": 1}, "stop_at=2 is not an accuracy"),
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


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        # BERT: 1e-4, 10,000 of 1,000,000 updates of warm-up, linear to 0.
        (
            {"steps": 1_000_000, "lr": 1e-4, "warmup": 10_000},
            {0: 1e-8, 9_999: 1e-4, 10_000: 1e-4, 500_000: 5.0505e-05, 999_999: 1.0101e-10},
        ),
        # Transformer-XL, base: 2.5e-4, cosine over 200,000 updates to 0.
        (
            {"steps": 200_000, "lr": 2.5e-4, "decay": "cosine"},
            {0: 2.5e-4, 50_000: 2.13388e-4, 100_000: 1.25e-4, 199_999: 1.54213e-14},
        ),
        # Graphormer on ZINC: 2e-4 to 1e-9, 40,000 of 400,000 updates, polynomial.
        (
            {
                "steps": 400_000, "lr": 2e-4, "warmup": 40_000, "decay": "polynomial",
                "end_lr": 1e-9,
            },
            {0: 5e-9, 39_999: 2e-4, 40_000: 2e-4, 220_000: 1.000005e-4,
             399_999: 1.5555528e-9},
        ),
        # A Transformer for translation: inverse square root after 1,000 updates.
        (
            {"steps": 6000, "lr": 1e-3, "warmup": 1000, "decay": "inverse-sqrt"},
            {0: 1e-6, 999: 1e-3, 1000: 9.995e-4, 3999: 5e-4, 5999: 4.08248e-4},
        ),
    ],
    ids=["bert", "transformer-xl", "graphormer", "translation"],
)  # fmt: skip
def test_rates_of_known_recipes(settings: dict[str, Any], rates: dict[int, float]) -> None:
    """Written down, not computed: a schedule that changes changes results."""
    config = TrainConfig(batch=1, **settings)
    check(config, 1, CPU)
    found = {step: learning_rate(config, step) for step in rates}
    assert found == pytest.approx(rates, rel=1e-5)


def test_the_rate_ends_at_nearly_nothing() -> None:
    linear = TrainConfig(steps=100, batch=1, lr=1.0, warmup=10)
    rates = [learning_rate(linear, step) for step in range(100)]
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(1 / 90)
    constant = TrainConfig(steps=100, batch=1, lr=1.0, warmup=10, decay="constant")
    assert learning_rate(constant, 99) == 1.0
