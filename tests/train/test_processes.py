"""Two processes compute what one does, and a killed run resumes to the same bits."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.programs import GUARD, run_program
from tests.train.runs import losses, tiny_run

from everyformer.train.run_folder import CHECKPOINT, LOG, read_log

SCRIPT = Path(__file__).with_name("runs.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def test_two_processes_give_the_losses_of_one(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", str(SCRIPT), str(tmp_path / "two")]
    run_program(*torchrun, env=ENVIRONMENT, scratch=tmp_path / "scratch")
    assert (tmp_path / "two" / "processes-2").exists(), "they worked together"
    agreed = sorted(path.name for path in (tmp_path / "two").glob("agreed-*"))
    assert agreed == ["agreed-0-False", "agreed-1-False"], "the first has the say"
    assert len(list((tmp_path / "two").glob("left-*"))) == 2, "both left the group"
    two, one = read_log(tmp_path / "two"), tiny_run().curve
    assert [line["step"] for line in two] == [line["step"] for line in one]
    assert losses(two) == pytest.approx(losses(one), abs=1e-5)
    # Not by chance: another batch gives other losses.
    other = losses(tiny_run(batch=16).curve)
    assert losses(two) != pytest.approx(other, abs=1e-3)


def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    killed, steps = tmp_path / "killed", 60
    command = [sys.executable, str(SCRIPT), str(killed), "--dropout", "0.2"]
    command += ["--steps", str(steps)]
    with (
        (tmp_path / "told").open("wb") as told,
        subprocess.Popen(command, env=ENVIRONMENT, stderr=told) as process,
    ):
        end = time.monotonic() + GUARD
        while len(losses(read_log(killed))) < 17 and time.monotonic() < end:
            assert process.poll() is None, (tmp_path / "told").read_text()
            time.sleep(0.01)
        process.kill()  # -9: no handler runs
    done = max(losses(read_log(killed)))
    assert 17 <= done < steps, "killed in the middle"
    assert (killed / CHECKPOINT).exists()
    with (killed / LOG).open("a") as file:  # a line that the kill cut short
        file.write('{"step": 99999, "lo')
    resumed = tiny_run(killed, dropout=0.2, steps=steps, resume=True)
    whole = tiny_run(tmp_path / "whole", dropout=0.2, steps=steps)
    assert losses(read_log(killed)) == losses(read_log(tmp_path / "whole"))
    assert resumed.test == whole.test
    # The resumed run began at the checkpoint, not at 0: it wrote fewer lines than it has.
    assert json.loads((killed / LOG).read_text().splitlines()[0])["step"] == 1
    assert len(losses(resumed.curve)) == steps
