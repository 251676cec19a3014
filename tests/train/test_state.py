"""A run goes on elsewhere."""

import os
import signal
from pathlib import Path

import pytest
import torch
from tests.train.runs import losses, tiny_run

from everyformer.errors import TrainingError
from everyformer.experiments.moving import import_runs
from everyformer.train.arithmetic import continued
from everyformer.train.run_folder import CHECKPOINT
from everyformer.train.state import export_state, import_state

TORCH = f"torch {torch.__version__}"


def test_a_run_goes_on_elsewhere_to_the_same_bits(tmp_path: Path) -> None:
    whole = tiny_run(dropout=0.2)
    tiny_run(tmp_path / "here" / "run", dropout=0.2, deadline=0.0)
    moved = export_state(tmp_path / "here" / "run", tmp_path / "file")
    there = import_state(moved, tmp_path / "there")
    rest = tiny_run(there, dropout=0.2, resume=True)
    assert losses(rest.curve) == losses(whole.curve)
    assert rest.test == whole.test
    assert rest.arithmetic == whole.arithmetic == {"0": f"CPU, 1 thread, {TORCH}"}


def test_a_run_says_with_which_arithmetic_it_went_on(tmp_path: Path) -> None:
    """Other threads sum in another order: its bits are not those of a run of one."""
    first = tiny_run(tmp_path, deadline=0.0)
    torch.set_num_threads(2)
    try:
        rest = tiny_run(tmp_path, resume=True)
    finally:
        torch.set_num_threads(1)
    assert first.steps == 10
    ran = {"0": f"CPU, 1 thread, {TORCH}", "10": f"CPU, 2 threads, {TORCH}"}
    assert rest.arithmetic == ran
    stored = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert stored["arithmetic"] == ran
    del stored["arithmetic"]
    assert continued(stored, "now") == {"0": "not recorded", "30": "now"}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_kill_in_an_export_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 with half of the checkpoint copied: no run is there; again, it is whole."""
    run, to = tmp_path / "run", tmp_path / "to"
    tiny_run(run, steps=6)
    pid = os.fork()
    if not pid:
        monkeypatch.setattr("shutil.copyfile", _killed_in_the_checkpoint)
        try:
            export_state(run, to)
        finally:  # a fork must not go on in the parent's code
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert [path.name for path in to.iterdir()] == [".run"]
    with pytest.raises(TrainingError, match="holds no run"):
        import_runs(to, tmp_path / "there")
    moved = export_state(run, to)
    assert [path.name for path in to.iterdir()] == ["run"]
    for path in moved.iterdir():
        assert path.read_bytes() == (run / path.name).read_bytes()


def _killed_in_the_checkpoint(source: Path, target: Path) -> None:
    whole = source.read_bytes()
    if source.name == CHECKPOINT:
        target.write_bytes(whole[: len(whole) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    target.write_bytes(whole)


def test_what_cannot_be_moved_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_run(run, steps=6)
    with pytest.raises(TrainingError, match="bytes, and states of at most 1,000 are moved"):
        export_state(run, tmp_path / "to", largest=1000)
    moved = export_state(run, tmp_path / "to")
    with pytest.raises(TrainingError, match="is there already"):
        export_state(run, tmp_path / "to")
    (moved / CHECKPOINT).unlink()
    with pytest.raises(TrainingError, match=r"is not the state of a run: .* checkpoint.pt"):
        import_state(moved, tmp_path / "there")
    with pytest.raises(TrainingError, match=r"cannot be moved: it has no run.json"):
        export_state(tmp_path / "to", tmp_path / "other")
