"""`python benchmarks/bert_update.py [--quick] [--profile] [--out DIR]`.

The theme `bert` of `everyformer bench`, with the kernels that take most of our update.
"""

import argparse
from pathlib import Path

from rich.console import Console

from everyformer.bench import bert
from everyformer.bench.results import write

parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true", help="our first row alone")
parser.add_argument("--profile", action="store_true", help="the 15 longest kernels")
parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
given = parser.parse_args()
report = bert.run(quick=given.quick, profile=given.profile)
path = write(given.out, "bert-quick" if given.quick else "bert", report)
console = Console(width=140)
console.print(bert.table(report))
if report["profile"]:
    console.print(report["profile"], markup=False, highlight=False)
for row in report["rows"]:
    if "failed" in row:
        console.print(f"{row['model']}, {row['how']}: {row['failed']}", markup=False)
console.print(f"{report['wall_s']:.0f} s; wrote {path}")
