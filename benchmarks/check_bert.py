"""How long `check` takes for a BERT of four layers at n = 64.

    OMP_NUM_THREADS=2 python benchmarks/check_bert.py --out benchmarks/results

With weights drawn at random, hidden sizes 64 and 768. Times are those of `ef.check` alone,
after all imports. Where other programs keep the cores busy, threads wait for each other:
then `OMP_WAIT_POLICY=passive` lets them sleep, and `main_thread_cpu_s`, the CPU time of the
thread that does all that is not shared out, is about what the clock shows on idle cores.
"""

import argparse
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

import everyformer as ef
from everyformer.bench.results import environment, write
from everyformer.cli import tables
from everyformer.verdict import Verdict

LAYERS, N = 4, 64
HEADS = {64: 4, 768: 12}


def row(hidden: int) -> dict[str, Any]:
    """Check one model, and time it."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS[hidden],
        intermediate_size=4 * hidden,
    )
    module = BertModel(config)
    before = resource.getrusage(resource.RUSAGE_SELF)
    wall, thread = time.perf_counter(), time.thread_time()
    report = ef.check(module, N, hidden)
    wall, thread = time.perf_counter() - wall, time.thread_time() - thread
    after = resource.getrusage(resource.RUSAGE_SELF)
    if report["EF002"].verdict is not Verdict.PROVED:
        raise SystemExit(f"hidden size {hidden}: {report}")
    return {
        "hidden": hidden,
        "layers": LAYERS,
        "n": N,
        "parameters": sum(weight.numel() for weight in module.parameters()),
        "verdicts": {one.code: str(one.verdict) for one in report.findings},
        "threads": torch.get_num_threads(),
        "wall_s": wall,
        "user_s": after.ru_utime - before.ru_utime,
        "system_s": after.ru_stime - before.ru_stime,
        "main_thread_cpu_s": thread,
        "largest_memory_MB": after.ru_maxrss // 1024,
        "load": os.getloadavg()[0],
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", ""),
    }


def main() -> None:
    """Time both sizes, print them, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out: Path = parser.parse_args().out
    rows: list[dict[str, Any]] = []
    for hidden in HEADS:
        rows.append(row(hidden))
        tables.show(str(rows[-1]))
    report = {"theme": "check-bert", "environment": environment(), "rows": rows}
    tables.show(f"Wrote {write(out, 'check-bert', report)}.")


if __name__ == "__main__":
    main()
