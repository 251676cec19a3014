import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import GUARD

import everyformer as ef
from everyformer.construct import pipeline

Command = Callable[..., Any]
FILES = {"network.safetensors", "certificate.json", "cost.json", "plot.png"}
DECLARED = FILES | {"target_values.npy"}


def names(folder: Path = Path()) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def swap_mean(x: np.ndarray) -> np.ndarray:
    return x.mean(-2, keepdims=True) - 0.5 * x


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_construct_writes_network_certificate_cost_and_plot(swap_mean_4: Path) -> None:
    assert names(swap_mean_4) == FILES
    assert names() == {"out"}
    network = ef.load(swap_mean_4 / "network.safetensors")
    assert network.blocks == read(swap_mean_4 / "cost.json")["cost"]["blocks"]
    assert (swap_mean_4 / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_files_hold_what_the_library_says(swap_mean_4: Path) -> None:
    target = ef.Target(swap_mean, 3, 1, lipschitz=1.5, equivariant=True)
    built = ef.construct(target, grid=4)
    proved = built.certificate
    assert read(swap_mean_4 / "certificate.json") == proved.to_json()
    assert proved.bound is not None
    assert proved.float64_bound is not None
    report = read(swap_mean_4 / "cost.json")
    assert report == {
        "plan": built.plan.to_json(),
        "cost": built.cost.to_json(),
        "certificate": {
            "verdict": "PROVED",
            "conditional_on": [],
            "text": proved.describe(verbose=True),
            "real": proved.bound.format_value(),
            "float64": proved.float64_bound.format_value(),
        },
        "tried": [],
    }
    assert float(report["certificate"]["real"]) >= float(proved.bound.value)


def test_construct_prints_plan_certificate_and_place(everyformer: Command) -> None:
    output = everyformer("construct", "reverse", "--grid", 4, "-o", "out").stdout
    assert "reverse: Theorem 3" in output
    assert "PROVED: d_2(reverse, g) <= 0.1021, g in real arithmetic and as" in output
    assert "<= 1.021e-01  d_p(f, g), p = 2, in real arithmetic" in output
    assert "[Yun et al. 2020, Lemma 8]" in output
    assert (
        "Wrote certificate.json, cost.json, network.safetensors, plot.png to out." in output
    )


def test_tolerance_chooses_the_grid_and_is_the_claim(everyformer: Command) -> None:
    arguments = ("construct", "sort", "--tol", 0.3, "-p", 1, "-o", "out", "--json")
    report = json.loads(everyformer(*arguments).stdout)
    assert report["plan"]["grid"] == 4
    assert float(report["certificate"]["real"]) <= 0.3
    assert "PROVED: d_1(sort, g) <= 0.3" in report["certificate"]["text"]
    assert report["folder"] == "out"
    claim = read(Path("out/certificate.json"))["claim"]
    assert (Fraction(claim["eps"]), claim["p"]) == (Fraction(3, 10), "1")


@pytest.mark.parametrize(
    ("options", "kind"),
    [((), "expression"), (("--trace",), "expression"), (("--no-trace",), "modulus")],
)
def test_trace_says_how_f_is_known(
    options: tuple[str, ...], kind: str, everyformer: Command
) -> None:
    arguments = ("construct", "sort", "--grid", 2, *options)
    output = everyformer(*arguments, "-o", "out").stdout
    assert read(Path("out/certificate.json"))["target"]["kind"] == kind
    conditional = kind == "modulus"
    assert names(Path("out")) == (DECLARED if conditional else FILES)
    assert ("PROVED, CONDITIONAL on the declared max|f(X)" in output) == conditional
    told = read(Path("out/cost.json"))["certificate"]["conditional_on"]
    assert (told == ["max|f(X) - f(Y)| <= 1 max|X - Y|"]) == conditional
    assert ("assumes: declared, not proved" in output) == conditional


def test_a_trace_counts_with_a_tolerance_too(everyformer: Command) -> None:
    arguments = ("construct", "reverse", "--tol", 0.22, "--json")
    traced = json.loads(everyformer(*arguments, "-o", "traced").stdout)
    declared = json.loads(everyformer(*arguments, "--no-trace", "-o", "declared").stdout)
    assert (traced["plan"]["grid"], declared["plan"]["grid"]) == (2, 4)
    assert (traced["tried"], len(declared["tried"])) == ([], 1)
    assert "grid=2" in declared["tried"][0]
    assert names(Path("declared")) == DECLARED


def test_what_was_tried_in_vain_is_told(everyformer: Command) -> None:
    arguments = ("construct", "reverse", "--tol", 0.22, "--no-trace", "-o", "out")
    lines = everyformer(*arguments).stdout.splitlines()
    assert lines[0] == "Tried before:"
    assert lines[1].split() == ["construction", "grid", "parameters", "outcome"]
    assert lines[2].startswith("  Theorem 3 of Yun et al. 2020     2         439  bound ")
    (kept,) = read(Path("out/cost.json"))["tried"]
    assert kept.startswith("Theorem 3 of Yun et al. 2020, grid=2, 439 parameters: bound ")


def test_what_would_be_much_cheaper_is_told(everyformer: Command) -> None:
    arguments = ("construct", "centring", "--grid", 8, "-o")
    shown = everyformer(*arguments, "out").stdout
    assert "Much cheaper than 3,105 parameters" in shown
    assert "by their plans (these networks were not built, and nothing was" in shown
    assert "--method compile" in shown
    found = json.loads(everyformer(*arguments, "other", "--json").stdout)["cheaper"]
    assert found[0]["shell"] == "--method compile"
    assert found[0]["parameters"] * 4 <= 3105
    best = everyformer(
        "construct", "centring", "--tol", 0.1, "--method", "compile", "-o", "c"
    )
    assert "cheaper" not in best.stdout


def test_no_certificate_is_made_where_none_is_asked_for(everyformer: Command) -> None:
    arguments = ("construct", "sort", "--grid", 2, "--no-certificate")
    output = everyformer(*arguments, "-o", "out").stdout
    assert "No certificate was asked for." in output
    assert names(Path("out")) == FILES - {"certificate.json"}
    report = json.loads(everyformer(*arguments, "-o", "other", "--json").stdout)
    assert report["certificate"] is None
    arguments = ("construct", "sort", "--tol", 0.5, "--no-certificate")
    everyformer(*arguments, "-o", "chosen")  # the certificate has chosen the grid
    assert names(Path("chosen")) == FILES


def test_where_to_compute_reaches_the_library(
    everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ef.Computing] = []

    def build(*args: object, computing: ef.Computing, **kwargs: object) -> None:
        seen.append(computing)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "construct", build)
    arguments = ("construct", "sort", "--grid", 2, "-o", "out")
    everyformer(*arguments, "--workers", 3, "--work", "kept", code=130)
    everyformer(*arguments, "--scheduler", "tcp://host:8786", code=130)
    everyformer(*arguments, code=130)
    told = [(found.scheduler, found.workers, found.work) for found in seen]
    assert told == [
        (None, 3, Path("kept")),
        ("tcp://host:8786", None, None),
        (None, None, None),
    ]
    assert names() == set()


def test_finished_shards_are_kept_and_used_again(
    everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_again(*args: object) -> dict[str, Any]:
        raise AssertionError

    arguments = ("construct", "sort", "--grid", 2, "--workers", 1, "--work", "kept")
    everyformer(*arguments, "-o", "out")
    assert len(names(Path("kept"))) == 1
    monkeypatch.setattr("everyformer.certify.on_cells.proof.examine", not_again)
    everyformer(*arguments, "-o", "again")
    one, other = (Path(folder) / "certificate.json" for folder in ("out", "again"))
    assert one.read_bytes() == other.read_bytes()


def test_exact_network_of_a_grid_that_is_not_dyadic(everyformer: Command) -> None:
    everyformer("construct", "sort", "--grid", 3, "--with", "softened=false", "-o", "out")
    assert ef.load("out/network.safetensors").is_exact


def test_several_coordinates_and_one_token(everyformer: Command) -> None:
    everyformer("construct", "reverse", "--grid", 2, "-d", 2, "-o", "wide")
    everyformer("construct", "sort", "--grid", 4, "-n", 1, "-o", "single")
    assert names(Path("wide")) == names(Path("single")) == FILES


UNTRACEABLE = """
import everyformer as ef

print("read")

def shout(x):
    print("called")
    return x if x.mean() < 2 else -x

def make():
    return ef.Target(shout, 2, 1)
"""


def test_nothing_is_claimed_of_an_unknown_function(everyformer: Command) -> None:
    Path("mine.py").write_text(UNTRACEABLE)
    arguments = ("construct", "mine.py:make", "--grid", 2)
    result = everyformer(*arguments, "-o", "out", "--json")
    found = json.loads(result.stdout)["certificate"]
    assert (found["verdict"], found["real"], found["float64"]) == ("UNKNOWN", None, None)
    assert "read" in result.stderr
    assert "called" in result.stderr
    output = everyformer(*arguments, "-o", "other").stdout
    assert "UNKNOWN: nothing is claimed of d_2(shout, g)" in output
    assert "not proved: target: no modulus is declared, and no trace" in output
    assert "measured, not proved: d_2 about" in output
    assert names(Path("other")) == FILES


def test_without_a_trace_only_declarations_count(everyformer: Command) -> None:
    """f could be traced; without that, and without a declaration, nothing is claimed."""
    Path("mine.py").write_text(
        "import everyformer as ef\nplain = ef.Target(lambda x: x, 2, 1, name='plain')\n"
    )
    arguments = ("construct", "mine.py:plain", "--grid", 2)
    assert "PROVED: d_2(plain, g)" in everyformer(*arguments, "-o", "traced").stdout
    output = everyformer(*arguments, "--no-trace", "-o", "out").stdout
    assert "UNKNOWN: nothing is claimed of d_2(plain, g)" in output


def test_overwrite_replaces_a_folder_of_ours(
    everyformer: Command, swap_mean_4: Path
) -> None:
    before = (swap_mean_4 / "network.safetensors").read_bytes()
    arguments = ("construct", "sort", "--grid", 2, "-o", swap_mean_4)
    result = everyformer(*arguments, code=2)
    assert "Error: out is not empty" in result.stderr
    assert (swap_mean_4 / "network.safetensors").read_bytes() == before
    everyformer(*arguments, "--overwrite")
    assert ef.load(swap_mean_4 / "network.safetensors").architecture.seq_len == 2
    assert names() == {"out"}


def test_overwrite_replaces_certificates_and_values(
    everyformer: Command, declared_4: Path
) -> None:
    assert names(declared_4) == DECLARED
    arguments = ("construct", "sort", "--grid", 2, "-o", declared_4, "--overwrite")
    everyformer(*arguments)
    assert names(declared_4) == FILES
    assert read(declared_4 / "certificate.json")["target"]["name"] == "sort"
    everyformer(*arguments, "--no-certificate")
    assert names(declared_4) == FILES - {"certificate.json"}


def test_an_empty_folder_is_filled(everyformer: Command) -> None:
    Path("out").mkdir()
    everyformer("construct", "sort", "--grid", 2, "-o", "out")
    assert names(Path("out")) == FILES


@pytest.mark.parametrize("present", [{"thesis.tex"}, FILES | {"thesis.tex"}])
def test_overwrite_never_deletes_what_is_not_ours(
    present: set[str], everyformer: Command
) -> None:
    Path("out").mkdir()
    for name in present:
        (Path("out") / name).write_text("mine")
    arguments = ("construct", "sort", "--grid", 2, "-o", "out", "--overwrite")
    assert "never replaced" in everyformer(*arguments, code=2).stderr
    assert names(Path("out")) == present
    assert (Path("out") / "thesis.tex").read_text() == "mine"


def test_overwrite_keeps_the_old_folder_when_building_fails(
    everyformer: Command, swap_mean_4: Path
) -> None:
    before = (swap_mean_4 / "network.safetensors").read_bytes()
    everyformer("construct", "sort", "--grid", 3, "-o", "out", "--overwrite", code=2)
    assert (swap_mean_4 / "network.safetensors").read_bytes() == before
    assert names() == {"out"}


def test_a_link_is_followed(everyformer: Command) -> None:
    Path("disk").mkdir()
    Path("out").symlink_to("disk")
    everyformer("construct", "sort", "--grid", 2, "-o", "out")
    assert Path("out").is_symlink()
    assert names(Path("disk")) == FILES


CERTIFYING = ("everyformer.certify.on_cells.proof.examine", {"network.safetensors"})
DRAWING = ("everyformer.cli.pictures.along_a_line", FILES - {"plot.png"})
"""What is called, and what lies in the hidden folder by then."""


@pytest.mark.parametrize(("where", "present"), [CERTIFYING, DRAWING])
@pytest.mark.parametrize(
    ("raised", "code"),
    [(KeyboardInterrupt(), 130), (OSError("disk full"), 2), (MemoryError(), 2)],
)
def test_interrupted_construct_leaves_nothing(
    where: str,
    present: set[str],
    raised: BaseException,
    code: int,
    everyformer: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*args: object) -> None:
        hidden = [name for name in names() if name.startswith(".out.")]
        assert names(Path(hidden[0]) / "new") == present
        raise raised

    monkeypatch.setattr(where, interrupted)
    everyformer("construct", "sort", "--grid", 2, "-o", "out", code=code)
    assert names() == set()


def test_an_interrupted_certificate_keeps_the_old_folder(
    everyformer: Command, swap_mean_4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    before = {path: path.read_bytes() for path in swap_mean_4.iterdir()}
    monkeypatch.setattr(CERTIFYING[0], interrupted)
    everyformer("construct", "sort", "--grid", 2, "-o", "out", "--overwrite", code=130)
    assert {path: path.read_bytes() for path in swap_mean_4.iterdir()} == before
    assert names() == {"out"}


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("where", [CERTIFYING[0], DRAWING[0]])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_are_handled_during_a_command_alone(
    where: str, number: int, everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*args: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr(where, signalled)
    before = signal.signal(number, signal.SIG_DFL)  # under nohup it is ignored
    try:
        everyformer("construct", "sort", "--grid", 2, "-o", "out", code=128 + number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert names() == set()


SLOW_TARGETS = """
import time, pathlib
import everyformer as ef

def slow(x):
    pathlib.Path("started").touch()
    time.sleep(60)
    return x

building = ef.Target(slow, 2, 1, lipschitz=1)
certifying = ef.Target(lambda x: x, 2, 1, modulus=slow)
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("during", ["building", "certifying"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_nothing(
    during: str, number: int, code: int, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TARGETS)
    (tmp_path / "scratch").mkdir()
    # A job in the background of a plain shell ignores SIGINT, and so would its children.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heard}; from everyformer.cli.app import main; main()"
    command = [sys.executable, "-B", "-c", program, "construct", f"slow.py:{during}"]
    with subprocess.Popen(
        [*command, "--grid", "2", "--no-trace", "-o", "out"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path / "scratch")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + GUARD
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
        (hidden,) = tmp_path.glob(".out.*/new")
        written = names(hidden)
        process.send_signal(number)
        _, told = process.communicate(timeout=GUARD)
    assert written == ({"network.safetensors"} if during == "certifying" else set())
    assert process.returncode == code
    assert told.strip() in {"Interrupted.", "Terminated."}
    assert names(tmp_path) == {"slow.py", "started", "scratch"}
    assert names(tmp_path / "scratch") == set()


def test_a_urpe_network_through_all_commands(everyformer: Command) -> None:
    """construct, verify, run with every executor, inspect."""
    arguments = ("prefix_mean", "-n", 3, "--tol", 0.3, "--workers", 1)
    output = everyformer("construct", *arguments, "--method", "urpe", "-o", "out").stdout
    assert "Omega_U^{2,1,4}" in output
    assert "PROVED" in output
    report = read(Path("out/cost.json"))
    network = ef.load("out/network.safetensors")
    assert network.positions is None
    assert network.stages[0].name == "position layer"
    assert report["plan"]["parameters"] == report["cost"]["parameters"]
    assert everyformer("verify", "out").stdout.startswith("PROVED")
    x = np.full((1, 3, 1), 0.25)
    x[0, 2] = 0.75
    np.save("x.npy", x)
    expected = ef.targets.prefix_mean(3, 1)(x)
    for executor in ("literal", "reference", "auto"):
        arguments = ("--input", "x.npy", "--output", "y.npy", "--executor", executor)
        everyformer("run", "out", *arguments)
        assert np.abs(np.load("y.npy") - expected).max() < 1e-9
    shown = everyformer("inspect", "out", "--input", "x.npy").stdout
    assert "position layer" in shown
    assert Path("out/ids.png").exists()


def test_urpe_was_asked_for_and_needs_no_excuse(everyformer: Command) -> None:
    """Who gets positions without having asked is told so; not with urpe."""
    arguments = ("centring", "-n", 3, "--tol", 0.6, "--workers", 1, "-o")
    output = everyformer("construct", *arguments, "one", "--method", "urpe").stdout
    assert "Omega_U" in output
    assert "Positions were added" not in output


@pytest.mark.parametrize("variant", ["wide", "narrow"])
def test_averaging_attention(everyformer: Command, variant: str) -> None:
    chosen = ("--method", "averaging", "--with", f"variant={variant}")
    output = everyformer("construct", "reverse", "--grid", 8, "-o", "out", *chosen).stdout
    assert "PROVED: d_2(reverse, g)" in output
    assert names(Path("out")) == FILES
    report = read(Path("out/cost.json"))
    assert report["plan"]["variant"] == variant
    assert report["cost"]["attention_layers"] == 1
    assert "PROVED" in everyformer("verify", "out").stdout
    np.save("x.npy", np.full((1, 2, 1), 0.3))
    shown = everyformer("inspect", "out", "--input", "x.npy").stdout
    assert "digits" in shown
    assert "no selective shifts" in shown
