"""Compiled networks at many points: measured errors beside proved bounds.

    python benchmarks/compiled_points.py --build PLACE            # needs python-flint
    python benchmarks/compiled_points.py --build PLACE --only normalise
    python benchmarks/compiled_points.py PLACE/* --points 100000 --out results.json

Each folder was written by `everyformer construct --method compile -o FOLDER`, or by the
first line: those of `everyformer bench compile` with n = 64; by the second, those whose
name begins so. The network runs as a PyTorch module in float64. f runs in float64 too, line
by line, so a gap may hold about 1e-15 of f's own rounding. At the point with the largest
gap f is evaluated again in extended precision, and in balls of 128 bits where python-flint
is installed.
"""

import argparse
import importlib.util
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import everyformer as ef
from everyformer.bench.methods.compile.compiling import (
    CASES,
    extended,
    in_balls,
    random_points,
)
from everyformer.bench.results import environment
from everyformer.certify.certificate_file import read_certificate
from everyformer.cli import tables
from everyformer.model.cost import count

CHUNK, CPU_CHUNK = 20_000, 64
"""Points at a time on a GPU, and on a CPU, whose caches then hold the weights."""

LINES = 2**25
"""Lines times points of f at a time on a CPU: with few points a line costs a call."""


class OnTensors:
    """The operations of expressions on tensors."""

    neg, abs, sqrt = (
        staticmethod(torch.neg),
        staticmethod(torch.abs),
        staticmethod(torch.sqrt),
    )
    sin, cos, exp = (
        staticmethod(torch.sin),
        staticmethod(torch.cos),
        staticmethod(torch.exp),
    )
    log, tanh = staticmethod(torch.log), staticmethod(torch.tanh)
    add, sub = staticmethod(torch.add), staticmethod(torch.sub)
    mul, div = staticmethod(torch.mul), staticmethod(torch.div)
    min, max = staticmethod(torch.minimum), staticmethod(torch.maximum)

    def __init__(self, device: str) -> None:
        """Where constants live."""
        self.device = device

    def constant(self, value: Any) -> torch.Tensor:
        """A number."""
        return torch.tensor(float(value), dtype=torch.float64, device=self.device)

    @staticmethod
    def pow(base: torch.Tensor, exponent: int) -> torch.Tensor:
        """An integer power."""
        return base**exponent

    @staticmethod
    def where(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """A choice."""
        return torch.where(c > 0, a, b)


def measure(folder: Path, points: int, device: str) -> dict[str, Any]:
    """The largest gap of one network."""
    said = read_certificate(folder)
    f, bound = said.statement.expression, said.float64_bound
    if f is None or bound is None:
        raise SystemExit(f"{folder} does not hold a compiled network with its proof.")
    network = ef.load(folder / "network.safetensors")
    module = network.to_torch().to(device)
    n, d = said.seq_len, said.d_model
    low, high = np.asarray(said.box.lows), np.asarray(said.box.highs)
    most, worst, started = 0.0, None, time.perf_counter()
    part = CPU_CHUNK if device == "cpu" else CHUNK
    chunk = CHUNK
    if device == "cpu":
        chunk = min(max(LINES // len(f.nodes), CPU_CHUNK), 1024)
    for unit in random_points(points, n, d, chunk):
        x = np.clip(low + (high - low) * unit, low, high)
        on = torch.from_numpy(x).to(device)
        rows = f.run(OnTensors(device), lambda j, i, on=on: on[:, j, i])
        with torch.no_grad():
            run = torch.cat([module(some) for some in on.split(part)])
        for j, row in enumerate(rows):
            wanted = torch.stack([torch.broadcast_to(v, (len(x),)) for v in row], dim=-1)
            gap = (run[:, j] - wanted).abs().amax(dim=-1)
            k = int(gap.argmax())
            if float(gap[k]) > most:
                most, worst = float(gap[k]), (x[k], run[k].cpu().numpy())
    again, balls = 0.0, None
    if worst is not None:
        again = float(np.abs(extended(f, worst[0][None]) - worst[1]).max())
        if importlib.util.find_spec("flint") is not None:
            balls = in_balls(f, *worst)
    return {
        "folder": folder.name, "n": n, "d": d, "lines": len(f.nodes), "points": points,
        "parameters": count(network).parameters,
        "proved_float64": float(bound.value), "measured": most, "worst_again": again,
        "worst_in_balls": balls,
        "holds": max(again, balls or 0.0) <= float(bound.value),
        "device": device, "seconds": time.perf_counter() - started,
    }  # fmt: skip


def build(place: Path, only: str) -> None:
    """A folder for each network of the bench with n = 64; equal networks once."""
    known: set[bytes] = set()
    for case in CASES:
        for tol in case.tols if case.n == 64 and case.name.startswith(only) else ():
            name = f"{case.name}-{tol:g}".replace(" ", "_").replace(",", "")
            folder = place / name
            if not folder.exists():
                built = ef.construct(case.target, tol=tol, method=case.method)
                built.save(folder)
            weights = (folder / "network.safetensors").read_bytes()
            tables.show(f"{name}: {len(weights):,} bytes")
            if weights in known:
                shutil.rmtree(folder)
                tables.show("  the same weights as for another tolerance")
            known.add(weights)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--build", type=Path, metavar="PLACE")
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.build is not None:
        build(given.build, given.only)
    rows: list[dict[str, Any]] = []
    for folder in given.folders:
        rows.append(measure(folder, given.points, given.device))
        tables.show(json.dumps(rows[-1]))
        if given.out is not None:
            report = {"theme": "compile", "environment": environment(), "rows": rows}
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    if not all(row["holds"] for row in rows):
        raise SystemExit("A measured error exceeds its bound.")


if __name__ == "__main__":
    main()
