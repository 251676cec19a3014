"""Two processes, each with half of a batch, train as one with all of it (DDP, gloo)."""

import json
import sys
from pathlib import Path

import torch
from tests.ops import parallel_worker as worker
from tests.programs import run_program

WORLD = 2


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*started, "--nproc-per-node", str(WORLD), worker.__file__, str(tmp_path)]
    run_program(*command, scratch=tmp_path / "scratch")
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORLD)]
    alone = worker.make_layer()
    losses = worker.train(alone, worker.make_batches())
    mean = [
        sum(both) / WORLD for both in zip(*(one["losses"] for one in found), strict=True)
    ]
    assert max(abs(a - b) for a, b in zip(mean, losses, strict=True)) < 1e-12
    assert losses[-1] < losses[0]
    for one in found:
        for ours, theirs in zip(alone.parameters(), one["parameters"], strict=True):
            other = torch.tensor(theirs, dtype=torch.float64)
            assert (ours.detach() - other).abs().max() < 1e-12
