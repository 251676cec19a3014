"""Runs in one process: precision, endings, folders, leaks."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.train.runs import TASK, losses, plain_losses, tiny_run
from torch import Tensor

from everyformer.data.batch import Batch, Draw
from everyformer.data.randomness import Split
from everyformer.data.task import Task
from everyformer.errors import TrainingError
from everyformer.experiments.expected import near_chance
from everyformer.experiments.urpe_synthetic.tasks import Synthetic
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig
from everyformer.train.loop import Outcome, train
from everyformer.train.objective import Objective
from everyformer.train.objectives.labels import Labels
from everyformer.train.run_folder import CHECKPOINT, LOG


def test_half_precision_is_near_and_not_the_same() -> None:
    whole, half = plain_losses(), losses(tiny_run(precision="bf16").curve)
    assert half == pytest.approx(whole, abs=0.05)
    assert half != whole


def test_an_accuracy_ends_a_run() -> None:
    ended = tiny_run(stop_at=0.1)
    assert (ended.ended, ended.steps) == ("accuracy", 10)


def test_a_deadline_ends_a_run_and_it_goes_on(tmp_path: Path) -> None:
    model = EncoderConfig(11, 8, dim=8, layers=1, heads=2, ffn=8)
    config = TrainConfig(
        steps=20, batch=4, lr=1e-3, evaluate_every=5, checkpoint_every=20, log_every=1,
    )  # fmt: skip
    task = Synthetic("etp", 8, 10, 0, evaluated=4)

    def run(deadline: float | None) -> Outcome:
        return train(
            lambda: Labels(Encoder(model)), task, config, folder=tmp_path, resume=True,
            deadline=deadline,
        )  # fmt: skip

    early, late = run(time.monotonic()), run(None)
    assert (early.ended, early.steps, late.ended, late.steps) == (
        "deadline",
        5,
        "steps",
        20,
    )
    assert list(losses(late.curve)) == list(range(1, 21))


def test_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tiny_run(folder, steps=6)
    with pytest.raises(TrainingError, match="holds this run already"):
        tiny_run(folder, steps=6)
    with pytest.raises(TrainingError, match=r"train.lr is 0.003 there and 0.1 here"):
        tiny_run(folder, steps=6, lr=0.1, resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("not to be lost")
    with pytest.raises(TrainingError, match="holds no run"):
        tiny_run(tmp_path / "full")
    told = json.loads((folder / "run.json").read_text())
    assert told["task"]["tokens"] == 10
    assert any((folder / "tensorboard").iterdir())


def test_damaged_files_of_a_run_are_refused(tmp_path: Path) -> None:
    tiny_run(tmp_path, steps=6)
    broken: list[tuple[str, bytes]] = [
        (CHECKPOINT, b"broken"),
        (LOG, b"broken\n"),
        (LOG, b"\xff\xfe\n"),
        (LOG, b'{"loss": 1.0}\n'),
        ("run.json", b'{"train'),
    ]
    for name, content in broken:
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TrainingError, match=f"{name} cannot be read .* Delete the"):
            tiny_run(tmp_path, steps=6, resume=True)
        (tmp_path / name).write_bytes(whole)
    assert tiny_run(tmp_path, steps=6, resume=True).steps == 6
    torch.save({"model": {}}, tmp_path / CHECKPOINT)
    with pytest.raises(TrainingError, match="does not hold ended, model, optimiser, step"):
        tiny_run(tmp_path, steps=6, resume=True)


def test_a_loss_that_is_no_number_is_refused() -> None:
    with pytest.raises(TrainingError, match="rate below lr=1e"):
        tiny_run(lr=1e30, warmup=0, clip=None)


class BreaksAt(Labels):
    """The gradient of one update is not finite, and maybe its loss."""

    update, last, lost = 0, 7, False

    def forward(self, batch: Batch) -> Tensor:
        self.update += 1
        total = super().forward(batch)
        if self.update == self.last:
            zero = 0 * next(self.parameters()).sum()
            total = total + (zero / 0 if self.lost else 0 * zero.sqrt())
        return total


@pytest.mark.parametrize(
    ("lost", "told"), [(False, "finite, though its loss was"), (True, "finite. Use a rate")]
)
def test_the_first_broken_update_is_named(lost: bool, told: str) -> None:
    model = EncoderConfig(TASK.vocab_size, 8, dim=16, layers=1, heads=2, ffn=32)

    def build() -> Labels:
        made = BreaksAt(Encoder(model))
        made.lost = lost
        return made

    config = TrainConfig(
        steps=12,
        batch=8,
        lr=1e-3,
        clip=1.0,
        log_every=4,
        evaluate_every=0,
        checkpoint_every=0,
    )
    wanted = f"nan after 8 updates, .* Update 7 was the first whose gradient was not {told}"
    with pytest.raises(TrainingError, match=wanted):
        train(build, TASK, config)


class Blockless(Objective):
    """A table, and no blocks."""

    def forward(self, batch: Batch) -> Tensor:
        return self.encoder(batch.tokens).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        return {"sum": self.encoder(batch.tokens).sum((1, 2))}


def test_a_model_without_blocks_is_not_compiled() -> None:
    config = TrainConfig(steps=1, batch=1, lr=1.0, compile=True)
    with pytest.raises(TrainingError, match="no ModuleList named blocks"):
        train(
            lambda: Blockless(torch.nn.Embedding(10, 10)), Synthetic("pi", 8, 10, 0), config
        )


def _no_positions(task: Task) -> Outcome:
    """A model without positions, on position identification."""
    model = EncoderConfig(
        50, 8, dim=32, layers=1, heads=2, ffn=64, encoding="none", head="untied", labels=8
    )
    config = TrainConfig(steps=80, batch=16, lr=1e-2, warmup=10, log_every=40)
    return train(lambda: Labels(Encoder(model)), task, config)


@dataclass(frozen=True)
class Repeated(Synthetic):
    """The same few sequences in training and in validation: a leak, made on purpose.

    A control for the theorem that a model without positions reads a position with
    accuracy at most 1/n from fresh tokens: with this data it does better, by memory.
    """

    sequences: int = 8

    def batch(self, split: Split, draw: Draw) -> Batch:
        """The first few sequences of the training set, again and again."""
        return super().batch("train", draw._replace(numbers=draw.numbers % self.sequences))


def test_repeated_data_is_noticed_as_a_leak() -> None:
    fresh = Synthetic("pi", 8, 50, 0)
    right = _no_positions(fresh).test["accuracy"]
    assert near_chance(right.mean_sampled, right.standard_error_sampled, fresh.chance)
    leaked = _no_positions(Repeated("pi", 8, 50, 0)).test["accuracy"]
    assert leaked.mean_sampled > 2 * fresh.chance
    assert not near_chance(leaked.mean_sampled, leaked.standard_error_sampled, fresh.chance)
