"""What small hostile files cost: time and memory of `verify` on each, in its own process.

Every case is a folder that somebody might send: it is well formed where that makes it more
expensive, and asks for hours or for more memory than there is.
"""

import hashlib
import json
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from safetensors.numpy import save_file

from everyformer.bench.methods import partition
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.certify.certificate import values_bytes
from everyformer.construct.pipeline import construct
from everyformer.files.names import CERTIFICATE_FILE, NETWORK_FILE, VALUES_FILE
from everyformer.files.network_file import FORMAT
from everyformer.files.tensors import read_tensors
from everyformer.progress import Progress, no_progress
from everyformer.targets import centring, reverse
from everyformer.targets.target import Target

TIMEOUT = 600
CHILD = """
import sys, time
import everyformer as ef
from everyformer.bench.hostile import peak_memory
outcome, clock, cpu = "nothing", time.perf_counter(), time.process_time()
try:
    if len(sys.argv) > 1:
        outcome = ef.verify(sys.argv[1]).verdict.name
except ef.errors.EveryformerError as error:
    outcome = type(error).__name__
print(outcome, time.perf_counter() - clock, time.process_time() - cpu, peak_memory())
"""


def peak_memory() -> int:
    """The most bytes that this process had in memory.

    Linux's `ru_maxrss` begins with that of the process which started it; VmHWM does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


class Folder:
    """A certificate and its weights, to be changed and written again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.certificate = json.loads((place / CERTIFICATE_FILE).read_text())
        found = read_tensors(place / NETWORK_FILE)
        self.arrays, self.description = found.arrays, json.loads(found.metadata[FORMAT])

    def write(self) -> None:
        """Write both; the certificate is told the hashes."""
        path = self.place / NETWORK_FILE
        save_file(self.arrays, path, {FORMAT: json.dumps(self.description)})
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.certificate["weights"]["sha256"] = digest
        (self.place / CERTIFICATE_FILE).write_text(json.dumps(self.certificate))

    def program(self, lines: list[list[Any]], outputs: list[list[int]]) -> None:
        """Put another f into the certificate."""
        n, d = len(outputs), len(outputs[0])
        f = {"seq_len": n, "d_model": d, "nodes": lines, "outputs": outputs}
        text = json.dumps(f, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.certificate["target"] |= {"expression": f, "sha256": digest}

    def length(self, n: int) -> None:
        """Another number of tokens; without positions no weight depends on it."""
        self.certificate["claim"]["n"] = n
        self.description["architecture"]["seq_len"] = n

    def values(self, values: np.ndarray) -> None:
        """Other values of a declared f."""
        data = values_bytes(values)
        (self.place / VALUES_FILE).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        self.certificate["target"]["values"]["sha256"] = digest


def endless_grid(folder: Folder) -> None:
    """n = K = 2^20 without positions: (2^20)^(2^20) cells."""
    folder.length(2**20)
    folder.certificate["construction"]["grid"] = 2**20


def tower_of_powers(folder: Folder) -> None:
    """x^64, to the 64, and so on: exponents of thousands of digits."""
    lines = [["x", 0, 0], ["x", 1, 0], *(["pow", k, 64] for k in range(1, 5000))]
    folder.program(lines, [[0], [len(lines) - 1]])


def tower_of_exponentials(folder: Folder) -> None:
    """exp(exp(...))."""
    lines = [["x", 0, 0], ["x", 1, 0], *(["exp", k] for k in range(1, 5000))]
    folder.program(lines, [[0], [len(lines) - 1]])


def plain_lines(folder: Folder) -> None:
    """300,000 lines, each of the one before: much, but no attack."""
    lines = [["x", 0, 0], ["x", 1, 0], *(["neg", k] for k in range(1, 300_000))]
    folder.program(lines, [[0], [len(lines) - 1]])


def four_million_plain_lines(folder: Folder) -> None:
    """The same, and about a minute."""
    lines = [["x", 0, 0], ["x", 1, 0], *(["neg", k] for k in range(1, 4_000_000))]
    folder.program(lines, [[0], [len(lines) - 1]])


def lines_that_use_everything(folder: Folder) -> None:
    """300,000 lines, each with a slope by each of 2,000 tokens."""
    n, lines = 2000, [["x", j, 0] for j in range(2000)]
    lines += [["add", len(lines) - 1 + k, k % n] for k in range(300_000)]
    folder.length(n)
    folder.certificate["construction"]["grid"] = 2
    folder.program(lines, [[len(lines) - 1 - j] for j in range(n)])


def lines_that_all_live(folder: Folder) -> None:
    """300,000 lines that are all needed until the end."""
    lines: list[list[Any]] = [["x", 0, 0], ["x", 1, 0]]
    lines += [["add", 0, 1] for _ in range(150_000)]
    lines += [["add", k, 150_001 - k] for k in range(2, 150_000)]
    folder.program(lines, [[0], [len(lines) - 1]])


def terms_of_a_bound(folder: Folder) -> None:
    """A tree of bounds with 200,000 terms."""
    term = {"value": "1/3", "reason": "", "source": "", "rule": "", "terms": []}
    folder.certificate["bound"] |= {"rule": "p-norm 9999", "terms": [term] * 200_000}


def steps_of_a_modulus(folder: Folder) -> None:
    """A modulus that is declared at distances of up to 2^20 cells."""
    steps = {str(k): "1" for k in range(1, 2**18)}
    folder.certificate["target"] |= {"steps": steps, "lipschitz": None}


def one_long_step(folder: Folder) -> None:
    """And at one of 2^20 cells, which was a loop of as many passes."""
    folder.certificate["target"] |= {"steps": {str(2**20): "1"}, "lipschitz": None}


def high_power_of_a_long_number(folder: Folder) -> None:
    """p = 4096, and eps of 8,000 digits."""
    folder.certificate["claim"] |= {"p": "4096", "eps": "1" * 4000 + "/" + "3" * 4000}


def a_key_twice(folder: Folder) -> None:
    """200,000 keys, the last of them twice."""
    folder.write()
    keys = ",".join(f'"{k}":0' for k in range(200_000))
    text = (folder.place / CERTIFICATE_FILE).read_text()
    text = f'{{"more": {{{keys},"199999":0}}, {text[1:]}'
    (folder.place / CERTIFICATE_FILE).write_text(text)


def tiny_decay(folder: Folder) -> None:
    """Scores that hardly fall off, so that sums over the lattice have no end."""
    name = next(k for k in folder.arrays if k.startswith("stages.2.attention.W_Q"))
    folder.arrays[name] = folder.arrays[name] * 2.0**-60
    folder.arrays[name.replace("W_Q", "b_Q")] *= 2.0**-60


def weights_with_a_hole(folder: Folder) -> None:
    """12 GiB of zeros that take no place on disk."""
    folder.write()
    path, hidden = folder.place / NETWORK_FILE, 2**29
    sizes = {
        "W_1": [1, hidden, 1],
        "b_1": [1, hidden],
        "W_2": [1, 1, hidden],
        "b_2": [1, 1],
    }
    header: dict[str, Any] = {"__metadata__": {FORMAT: json.dumps(folder.description)}}
    place = 0
    for name, shape in sizes.items():
        size = 8 * int(np.prod(shape))
        header[f"stages.0.feed_forward.{name}"] = {
            "dtype": "F64",
            "shape": shape,
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + place)


def certificate_with_a_hole(folder: Folder) -> None:
    """A certificate of 64 GiB."""
    folder.write()
    with (folder.place / CERTIFICATE_FILE).open("r+b") as file:
        file.truncate(2**36)


def untraceable(x: np.ndarray) -> np.ndarray:
    """The tokens in reverse order, by way of lists, which have no expression."""
    return np.array(x.tolist())[..., ::-1, :]


BASES: dict[str, Callable[[], Any]] = {
    "equivariant": lambda: construct(centring(2), grid=2),
    "positions": lambda: construct(reverse(2), grid=2),
    "declared": lambda: construct(Target(untraceable, 2, 1, lipschitz=1), grid=2),
    partition.NAME: lambda: construct(reverse(1), grid=2, method=partition.PLAIN),
}
CASES: tuple[tuple[Callable[[Folder], None], str], ...] = (
    (endless_grid, "equivariant"),
    (tower_of_powers, "positions"),
    (tower_of_exponentials, "positions"),
    (plain_lines, "positions"),
    (four_million_plain_lines, "positions"),
    (lines_that_use_everything, "equivariant"),
    (lines_that_all_live, "positions"),
    (terms_of_a_bound, "positions"),
    (steps_of_a_modulus, "declared"),
    (one_long_step, "declared"),
    (high_power_of_a_long_number, "positions"),
    (a_key_twice, "positions"),
    (tiny_decay, partition.NAME),
    (weights_with_a_hole, "positions"),
    (certificate_with_a_hole, "positions"),
)
WRITTEN = (a_key_twice, weights_with_a_hole, certificate_with_a_hole)
"""They write their files themselves."""


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Verify each folder in a process of its own, after an honest one for comparison."""
    cases = CASES[:2] if quick else CASES
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        honest = Path(name) / "honest"
        BASES["positions"]().save(honest)
        rows.append({"case": "nothing but imports", **measure(None)})
        rows.append({"case": "an honest certificate", **measure(honest)})
        for done, (change, base) in enumerate(cases):
            progress("hostile files", done, len(cases))
            place = Path(name) / change.__name__
            make(change, base, place)
            title = change.__name__.replace("_", " ")
            rows.append({"case": title, **measure(place)})
    return {"theme": "hostile", "environment": environment(), "rows": rows}


def make(change: Callable[[Folder], None], base: str, place: Path) -> None:
    """Write the folder of a case."""
    BASES[base]().save(place)
    folder = Folder(place)
    change(folder)
    if change not in WRITTEN:
        folder.write()


def measure(place: Path | None) -> dict[str, Any]:
    """Outcome, seconds and peak memory of verifying a folder in a new process."""
    files = [] if place is None else place.iterdir()
    size = sum(path.stat().st_blocks * 512 for path in files)
    command = [sys.executable, "-c", CHILD, *([] if place is None else [str(place)])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"bytes_on_disk": size, "outcome": f"still running after {TIMEOUT} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["killed"]
        return {"bytes_on_disk": size, "outcome": f"failed: {last[0]}"}
    outcome, seconds, cpu, peak = done.stdout.split()
    return {
        "bytes_on_disk": size,
        "outcome": outcome,
        "seconds": float(seconds),
        "cpu_seconds": float(cpu),
        "peak_bytes": int(peak),
    }


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "case": "{case}",
        "outcome": "{outcome}",
        "on disk KiB": "{bytes_on_disk:KiB,.0f}",
        "s of CPU": "{cpu_seconds:.2f}",
        "peak MiB": "{peak_bytes:MiB.0f}",
    }
    title = "Hostile files, each verified in its own process"
    return table_of(title, report["rows"], columns, left=("case", "outcome"))
