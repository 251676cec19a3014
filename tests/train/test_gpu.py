"""On a GPU: the same data, compiled half precision, and the same bits again."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import TASK, losses, ragged_run, tiny_run
from torch import nn

from everyformer.data.batch import Draw
from everyformer.data.randomness import random_integers
from everyformer.train.recorded import WARM_UP, Recorded

pytestmark = pytest.mark.gpu


def test_data_is_that_of_the_cpu() -> None:
    numbers = torch.arange(1000)
    here = random_integers(10_000, 1, "train", numbers, 33)
    there = random_integers(10_000, 1, "train", numbers.cuda(), 33)
    assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("compiles", [False, True])
def test_half_precision_is_near(compiles: bool) -> None:
    whole = losses(tiny_run(dim=64).curve)
    half = losses(tiny_run(dim=64, precision="bf16", compile=compiles).curve)
    assert half == pytest.approx(whole, abs=0.05)


def test_two_runs_have_the_same_bits() -> None:
    one, two = (tiny_run(dim=64, precision="bf16", dropout=0.1) for _ in range(2))
    assert losses(one.curve) == losses(two.curve)


@pytest.mark.parametrize("more", [{}, {"compile": True, "precision": "bf16"}])
def test_recorded_updates_are_those_of_python(more: dict[str, Any]) -> None:
    """Dropout, rates of the warm-up and sequences change within the graph."""
    settings: dict[str, Any] = {"dim": 64, "dropout": 0.1, "accumulation": 2} | more
    plain, recorded = (tiny_run(record=record, **settings) for record in (False, True))
    assert losses(recorded.curve) == pytest.approx(losses(plain.curve), rel=1e-4)


def test_two_replays_drop_differently_and_a_seed_fixes_them() -> None:
    x, task = torch.ones(64, 64, device="cuda"), TASK
    dropped = nn.Dropout(0.5).cuda()

    def update(draws: list[Draw]) -> torch.Tensor:
        return dropped(x) * draws[0].numbers.sum()

    recorded = Recorded(update)

    def drawn(seed: int | None) -> torch.Tensor:
        if seed is not None:
            torch.manual_seed(seed)
        return recorded([task.draw(0, 4, 0, 1, x.device)])

    plain = [drawn(seed) for seed in (1, 2, 3)]  # not recorded yet
    assert recorded.graphs == 0
    one, other, again = drawn(1), drawn(None), drawn(1)
    assert recorded.graphs == 1
    assert torch.equal(one, again)
    assert torch.equal(one, plain[0]), "the masks that Python would have drawn"
    assert not torch.equal(one, other)
    assert not torch.equal(one, drawn(2))


def test_a_recording_that_breaks_off_says_why_and_keeps_no_memory() -> None:
    """Numbers of the GPU are read while it is recorded; each try takes 64 MiB."""
    x = torch.ones(2**22, device="cuda")
    tried: list[int] = []
    for _ in range(3):

        def reads(x: torch.Tensor) -> torch.Tensor:
            several = [x + number for number in range(4)]
            return several[3] * float(several[0].sum())

        recorded = Recorded(reads)
        for _ in range(WARM_UP):
            recorded(x)
        with pytest.raises(RuntimeError, match="captur"):
            recorded(x)
        assert float(reads(x)[0]) == 4 * x.numel()
        assert torch.rand(3, device="cuda").max() < 1  # of a generator that no graph has
        del recorded
        gc.collect()
        torch.cuda.empty_cache()
        tried.append(torch.cuda.memory_reserved())
    assert tried[2] - tried[0] < 2**25

    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    doubled = Recorded(double)  # others are recorded as before
    assert [float(doubled(x + n)[0]) for n in range(6)] == [2.0 + 2 * n for n in range(6)]
    assert doubled.graphs == 1


def test_every_shape_has_its_graph_and_python_s_losses() -> None:
    """Two lengths, two terms and filling; the graphs share their memory."""
    settings: dict[str, Any] = {"steps": 24, "accumulation": 2, "checkpoint_every": 0}
    plain, recorded = (
        ragged_run(record=record, longer=(9, 14), **settings) for record in (False, True)
    )
    assert losses(recorded.curve) == pytest.approx(losses(plain.curve), rel=1e-6)


@pytest.mark.parametrize("more", [{}, {"compile": True, "record": True}])
def test_cudnn_gives_the_losses_of_other_kernels(more: dict[str, Any]) -> None:
    """In bf16, where it takes the layer: no encoding, no gain."""
    settings: dict[str, Any] = {"dim": 128, "precision": "bf16", "encoding": "ape"}
    plain = losses(tiny_run(**settings).curve)
    assert losses(tiny_run(cudnn=True, **settings, **more).curve) == pytest.approx(
        plain, abs=0.05
    )


def test_a_recorded_run_resumes_exactly(tmp_path: Path) -> None:
    whole = tiny_run(dim=64, dropout=0.1, record=True)
    tiny_run(tmp_path, dim=64, dropout=0.1, record=True, deadline=0.0)
    rest = tiny_run(tmp_path, dim=64, dropout=0.1, record=True, resume=True)
    assert losses(rest.curve) == losses(whole.curve)
    assert rest.steps > 10  # of which the stopped run made 10


def test_killed_runs_resume_with_the_same_bits(tmp_path: Path) -> None:
    """Half of them compiled; logs and weights are those of a run that nobody killed."""
    subprocess.run([sys.executable, "-m", "tests.train.gpu_kills", tmp_path], check=True)
    found = json.loads((tmp_path / "kills.json").read_text())
    assert len(found) == 4
    early = [kill for kill in found if kill["killed"] and 0 < kill["reached"] < 1500]
    assert len(early) >= 2
    assert [kill for kill in found if kill["same"] != [True, True]] == []
