"""Two processes compute what one does, and a killed run resumes to the same bits."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.programs import run_program
from tests.train.kills import STEPS
from tests.train.runs import losses, plain_losses, ragged_run, tiny_run

from everyformer.train.run_folder import read_log

SCRIPT = Path(__file__).with_name("kills.py")
PATHS = [str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONPATH": os.pathsep.join(PATHS),
}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes of torchrun left: both tests read it, and torch starts once."""
    folder = tmp_path_factory.mktemp("torchrun")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", str(SCRIPT), str(folder)]
    run_program(*torchrun, env=ENVIRONMENT, scratch=folder / "scratch")
    return folder


def test_two_processes_give_the_losses_of_one(left: Path) -> None:
    assert (left / "two" / "processes-2").exists(), "they worked together"
    agreed = sorted(path.name for path in (left / "two").glob("agreed-*"))
    assert agreed == ["agreed-0-False", "agreed-1-False"], "the first has the say"
    assert len(list((left / "two").glob("left-*"))) == 2, "both left the group"
    two = read_log(left / "two")
    steps = [line["step"] for line in two]
    assert steps == sorted([*range(1, 31), 10, 20, 30]), "30 losses, three evaluations"
    assert losses(two) == pytest.approx(plain_losses(), abs=1e-5)
    # Not by chance: another batch gives other losses.
    other = losses(tiny_run(batch=16).curve)
    assert losses(two) != pytest.approx(other, abs=1e-3)


def test_unequal_weights_add_up(left: Path) -> None:
    """One process = two processes = four accumulated parts, term by term."""
    two = read_log(left / "two" / "ragged")
    one, four = ragged_run().curve, ragged_run(accumulation=4).curve
    assert [line["step"] for line in one] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    assert set(one[0]) == {"step", "loss", "masked", "next", "lr"}
    assert set(one[4]) == {"step", "accuracy", "nats", "next", "windows"}
    for other in (two, four):
        for found, wanted in zip(other, one, strict=True):
            assert found == pytest.approx(wanted, rel=1e-6)


def test_ten_kills_at_random_moments_and_two_in_a_write(left: Path) -> None:
    """Pre-training, a run from its weights, two terms: log and weights to the same bits."""
    told = [json.loads((left / f"kills-{rank}.json").read_text()) for rank in range(2)]
    found: list[dict[str, Any]] = [run for own in told for run in own]
    assert len(found) == 12
    assert all(all(run["same"]) for run in found), told
    assert all(run["killed"] for run in found[-2:]), "in the write of a file"
    assert sum(run["killed"] for run in found[:-2]) >= 5, told
    assert any(0 < run["reached"] < STEPS for run in found[:-2]), told
    # The one that died in the write of its weights had its last checkpoint, and no more.
    assert [run["done"] for run in found[-2:]] == [STEPS, 0]
    for run in found[:-2]:
        late = run["killed"] and run["reached"] > 7
        assert run["done"] < STEPS or not late, "it went on from a checkpoint"
