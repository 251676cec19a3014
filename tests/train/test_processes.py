"""Two processes compute what one does, and a killed run resumes to the same bits."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.programs import run_program
from tests.train.runs import losses, ragged_run, tiny_run

from everyformer.train.run_folder import read_log

SCRIPT = Path(__file__).with_name("runs.py")
PATHS = [str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONPATH": os.pathsep.join(PATHS),
}


def test_two_processes_give_the_losses_of_one(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", str(SCRIPT), str(tmp_path / "two")]
    torchrun += ["--ragged"]
    run_program(*torchrun, env=ENVIRONMENT, scratch=tmp_path / "scratch")
    assert (tmp_path / "two" / "processes-2").exists(), "they worked together"
    agreed = sorted(path.name for path in (tmp_path / "two").glob("agreed-*"))
    assert agreed == ["agreed-0-False", "agreed-1-False"], "the first has the say"
    assert len(list((tmp_path / "two").glob("left-*"))) == 2, "both left the group"
    two, one = read_log(tmp_path / "two"), tiny_run().curve
    assert [line["step"] for line in two] == [line["step"] for line in one]
    assert losses(two) == pytest.approx(losses(one), abs=1e-5)
    _unequal_weights_add_up(read_log(tmp_path / "two" / "ragged"))
    # Not by chance: another batch gives other losses.
    other = losses(tiny_run(batch=16).curve)
    assert losses(two) != pytest.approx(other, abs=1e-3)


def _unequal_weights_add_up(two: list[dict[str, Any]]) -> None:
    """One process = two processes = four accumulated parts, term by term."""
    one, four = ragged_run().curve, ragged_run(accumulation=4).curve
    assert [line["step"] for line in one] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    assert set(one[0]) == {"step", "loss", "masked", "next", "lr"}
    assert set(one[4]) == {"step", "accuracy", "nats", "next", "windows"}
    for other in (two, four):
        for found, wanted in zip(other, one, strict=True):
            assert found == pytest.approx(wanted, rel=1e-6)


def test_ten_kills_at_random_moments_and_two_in_a_write(tmp_path: Path) -> None:
    """Pre-training, a run from its weights, two terms: log and weights to the same bits."""
    script = SCRIPT.with_name("kills.py")
    told = run_program(sys.executable, script, tmp_path, 10, env=ENVIRONMENT).stdout
    found = [json.loads(line) for line in told.splitlines()]
    assert len(found) == 12
    assert all(all(run["same"]) for run in found), told
    assert all(run["killed"] for run in found[-2:]), "in the write of a file"
    assert sum(run["killed"] for run in found[:-2]) >= 5, told
    assert any(0 < run["reached"] < 40 for run in found[:-2]), told
    # The one that died in the write of its weights had its last checkpoint, and no more.
    assert [run["done"] for run in found[-2:]] == [40, 0]
    for run in found[:-2]:
        late = run["killed"] and run["reached"] > 7
        assert run["done"] < 40 or not late, "it went on from a checkpoint"
