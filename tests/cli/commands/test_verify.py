"""`everyformer verify`: exit code 0 PROVED, 1 REFUTED, 3 UNKNOWN, 2 no verdict."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import run_program

import everyformer as ef
from everyformer.certify import shards
from everyformer.certify.work import MAX_WORK
from everyformer.files.network_file import MAX_MEMORY

Command = Callable[..., Any]
Edit = Callable[[Any], object]

TARGETS = """
import everyformer as ef

print("read")

def swap_mean(x):
    print("called")
    return x.mean(-2, keepdims=True) - 0.5 * x

def shifted(x):
    return swap_mean(x) + SHIFT

def rewritten(x):
    return -0.5 * x + x.sum(-2, keepdims=True) / 3

def branching(x):
    return swap_mean(x) if x.mean() < 2 else x

def targets(function):
    return ef.Target(function, 3, 1, lipschitz=1.5, equivariant=True)

same, other, again = targets(swap_mean), targets(shifted), targets(rewritten)
untraceable = targets(branching)
longer = ef.Target(swap_mean, 4, 1)
elsewhere = ef.Target(swap_mean, 3, 1, domain=[(-1, 1)])
"""


def edit(folder: Path, change: Edit) -> None:
    path = folder / "certificate.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def claim(eps: str) -> Edit:
    return lambda values: values["claim"].update(eps=eps)


def write_targets(folder: Path) -> None:
    eps = json.loads((folder / "certificate.json").read_text())["claim"]["eps"]
    text = TARGETS.replace("SHIFT", repr(4 * float(Fraction(eps))))
    Path("mine.py").write_text(text)


def contents() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_a_certificate_is_proved_again(everyformer: Command, swap_mean_4: Path) -> None:
    before = contents()
    output = everyformer("verify", swap_mean_4, "--workers", 1, "--verbose").stdout
    stored = json.loads((swap_mean_4 / "cost.json").read_text())["certificate"]["text"]
    first, where, *rest = output.splitlines()
    assert first.startswith("PROVED: d_2(f, g) <= 0.39")
    assert where == (
        'where f is the expression in the file, called "swap_mean" by the file; '
        "3 tokens of 1 number in [0, 1]"
    )
    named = first.replace("(f, g)", "(swap_mean, g)")
    assert [named, *rest] == stored.splitlines()
    assert contents() == before


def test_the_installed_program(swap_mean_4: Path) -> None:
    program = Path(sys.executable).with_name("everyformer")
    command = [program, "verify", swap_mean_4, "--workers", "1"]
    done = run_program(*command)
    assert done.stderr == ""
    assert done.stdout.startswith("PROVED: ")
    edit(swap_mean_4, claim("1/10"))
    done = run_program(*command, code=1)
    assert done.stderr == ""
    assert done.stdout.startswith("REFUTED: ")


def test_a_false_claim_is_refuted(everyformer: Command, swap_mean_4: Path) -> None:
    edit(swap_mean_4, claim("1/10"))
    output = everyformer("verify", swap_mean_4, code=1).stdout
    assert output.startswith("REFUTED: d_2(f, g) <= 0.1, g in real arithmetic")
    assert "because d_2(f, g) is at least 0.2" in output
    assert "above 0.1" in output


def test_a_claim_that_is_too_close_is_unknown(
    everyformer: Command, swap_mean_4: Path
) -> None:
    edit(swap_mean_4, claim("39/100"))
    output = everyformer("verify", swap_mean_4, code=3).stdout
    assert output.startswith("UNKNOWN: d_2(f, g) <= 0.39, g in real arithmetic")
    assert "(real) exceeds 0.39; a finer grid, or a larger eps" in output


def test_numbers_that_do_not_follow_are_unknown(
    everyformer: Command, swap_mean_4: Path
) -> None:
    edit(swap_mean_4, lambda values: values["bound"].update(value="1/3"))
    output = everyformer("verify", swap_mean_4, code=3).stdout
    assert "because bound: the stated numbers (real) do not follow" in output


def test_a_tree_of_another_size_is_a_remark(
    everyformer: Command, swap_mean_4: Path
) -> None:
    own = {"value": "1/100", "reason": "", "source": "", "rule": "", "terms": []}
    edit(swap_mean_4, lambda values: values.update(bound=own))
    output = everyformer("verify", swap_mean_4).stdout
    assert "note: the bound found (real) is larger than the stated 1.000e-02" in output


def test_nothing_claimed_is_unknown(everyformer: Command) -> None:
    Path("mine.py").write_text(TARGETS.replace("SHIFT", "1").replace("1.5", "None"))
    everyformer("construct", "mine.py:untraceable", "--grid", 4, "-o", "out")
    result = everyformer("verify", "out", code=3)
    assert "UNKNOWN: nothing is claimed of d_2(f, g)" in result.stdout
    assert "because nothing is claimed" in result.stdout
    assert result.stderr == ""  # the file is not run


def test_json_holds_verdict_claim_bounds_and_reasons(
    everyformer: Command, swap_mean_4: Path
) -> None:
    stored = json.loads((swap_mean_4 / "certificate.json").read_text())
    found = json.loads(everyformer("verify", swap_mean_4, "--json").stdout)
    assert set(found) == {
        "verdict",
        "conditional_on",
        "headline",
        "claim",
        "f",
        "reasons",
        "remarks",
        "bound",
        "float64_bound",
        "hypotheses",
    }
    assert (found["verdict"], found["reasons"], found["remarks"]) == ("PROVED", [], [])
    assert found["conditional_on"] == []
    assert (found["f"]["name"], found["f"]["name_in_file"]) == (None, "swap_mean")
    for key in ("claim", "bound", "float64_bound", "hypotheses"):
        assert found[key] == stored[key]
    assert ef.Bound.from_json(found["bound"]).is_consistent()
    edit(swap_mean_4, claim("1/10"))
    found = json.loads(everyformer("verify", swap_mean_4, "--json", code=1).stdout)
    assert (found["verdict"], found["claim"]["eps"]) == ("REFUTED", "1/10")
    assert "is at least" in found["reasons"][0]
    edit(swap_mean_4, lambda values: values["claim"].update(eps=None))
    found = json.loads(everyformer("verify", swap_mean_4, "--json", code=3).stdout)
    assert (found["verdict"], found["bound"]) == ("UNKNOWN", None)


@pytest.mark.parametrize(
    ("name", "code", "remark"),
    [
        ("same", 0, "the expression in the certificate is that of swap_mean"),
        ("again", 0, "the expression in the certificate differs from that of rewritten"),
        ("other", 1, "the expression in the certificate differs from that of shifted"),
    ],
)
def test_f_is_derived_again(
    name: str, code: int, remark: str, everyformer: Command, swap_mean_4: Path
) -> None:
    write_targets(swap_mean_4)
    arguments = ("verify", swap_mean_4, "--target", f"mine.py:{name}", "--workers", 1)
    result = everyformer(*arguments, "--json", code=code)
    found = json.loads(result.stdout)  # what the file prints is not there
    assert any(text.startswith(remark) for text in found["remarks"])
    assert "read" in result.stderr
    assert ("called" in result.stderr) == (name != "again")
    assert f"note: {remark}" in everyformer(*arguments, code=code).stdout


@pytest.mark.parametrize(
    ("name", "code", "remark"),
    [
        ("same", 0, "the values in the certificate are those of swap_mean"),
        ("untraceable", 0, "the values in the certificate are those of branching"),
        ("other", 1, "the values in the certificate differ from those of shifted"),
    ],
)
def test_declared_values_are_derived_again(
    name: str, code: int, remark: str, everyformer: Command, declared_4: Path
) -> None:
    everyformer("verify", declared_4, "--workers", 1)
    write_targets(declared_4)
    result = everyformer("verify", declared_4, "--target", f"mine.py:{name}", code=code)
    first = result.stdout.splitlines()[0]
    assert first.startswith(
        f"{'REFUTED' if code else 'PROVED'}, CONDITIONAL on the declared "
        "max|f(X) - f(Y)| <= 1.5 max|X - Y| and equivariance of f: d_2("
    )
    assert f"note: {remark}" in result.stdout


def test_a_target_of_the_gallery_has_a_size(everyformer: Command) -> None:
    everyformer("construct", "sort", "--grid", 2, "-n", 3, "-o", "out")
    everyformer("verify", "out", "--target", "sort", "-n", 3, "-d", 1)
    everyformer("verify", "out", "--target", "reverse", "-n", 3, code=3)
    told = everyformer("verify", "out", "--target", "sort", code=2).stderr
    assert "sort has n = 2, d = 1 on [0, 1]; the certificate is about n = 3" in told


def test_balls_prove_the_same(everyformer: Command) -> None:
    Path("mine.py").write_text(
        "import everyformer as ef\n"
        # float64 intervals see a division by 0 on the first cell
        "target = ef.Target(lambda x: 1 / (1 + 2 * (x * x - x)), 1, 1, name='f')\n"
    )
    everyformer("construct", "mine.py:target", "--grid", 2, "-p", 4, "-o", "out")
    assert json.loads(Path("out/certificate.json").read_text())["cells"]["by_balls"] > 0
    everyformer("verify", "out")
    everyformer("construct", "reverse", "--grid", 2, "-o", "other")
    plain = json.loads(everyformer("verify", "other", "--json").stdout)
    balls = json.loads(everyformer("verify", "other", "--json", "--balls").stdout)
    values = [float(Fraction(found["bound"]["value"])) for found in (plain, balls)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_where_to_compute_reaches_the_library(
    everyformer: Command, swap_mean_4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    def check(
        folder: Path, target: None, computing: ef.Computing, **more: Any
    ) -> ef.Verification:
        places = (computing.scheduler, computing.workers, computing.work)
        seen.append((*places, more["balls"], more["max_work"], more["max_memory"]))
        raise KeyboardInterrupt

    monkeypatch.setattr("everyformer.certify.verify.verify", check)
    arguments = ("--workers", 3, "--work", "kept", "--balls")
    limits = ("--max-work", 7, "--max-memory", 1)
    everyformer("verify", swap_mean_4, *arguments, *limits, code=130)
    everyformer("verify", swap_mean_4, "--scheduler", "tcp://host:8786", code=130)
    assert seen == [
        (None, 3, Path("kept"), True, 7, 2**30),
        ("tcp://host:8786", None, None, False, MAX_WORK, MAX_MEMORY),
    ]


@pytest.mark.parametrize("seconds", ["0", "nan", "inf"])
@pytest.mark.parametrize("command", [("verify",), ("ablate", "--stage", "x")])
def test_a_limit_of_work_that_is_none_is_a_usage_error(
    everyformer: Command, command: tuple[str, ...], seconds: str
) -> None:
    Path("out").mkdir()
    Path("out/certificate.json").touch()
    name, *more = command
    told = everyformer(name, "out", *more, "--max-work", seconds, code=2).stderr
    assert f"--max-work {seconds} is not a positive, finite number of seconds." in told


def test_finished_shards_are_kept_and_used_again(
    everyformer: Command, swap_mean_4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    arguments = ("verify", swap_mean_4, "--workers", 1, "--work", "kept", "--json")
    with monkeypatch.context() as patch:
        patch.setattr("everyformer.certify.on_cells.proof.examine", interrupted)
        assert everyformer(*arguments, code=130).stderr == "Interrupted.\n"
        assert not list(Path("kept").iterdir())
    first = everyformer(*arguments).stdout
    assert len(list(Path("kept").iterdir())) == 1
    monkeypatch.setattr("everyformer.certify.on_cells.proof.examine", interrupted)
    assert everyformer(*arguments).stdout == first
    everyformer(*arguments, "--balls", code=130)  # shards of another kind


def test_a_scheduler_that_is_not_there(
    everyformer: Command, swap_mean_4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_CONNECT_SECONDS", 1)
    for address, why in (
        ("nonsense", "missing port number"),
        ("http://host:1", "unknown address scheme"),
        ("tcp://127.0.0.1:9", "Timed out trying to connect"),
    ):
        arguments = ("verify", swap_mean_4, "--json", "--scheduler", address)
        result = everyformer(*arguments, code=2)
        assert result.stdout == ""
        assert (
            f"Error: The Dask scheduler '{address}' cannot be used: {why}" in result.stderr
        )
        assert "Give the address that `dask scheduler` prints" in result.stderr


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def replace(name: str, data: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return change


def cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return change


def flip_last_bit(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[-1] ^= 1
        (folder / name).write_bytes(data)

    return change


def edited(change: Edit) -> Callable[[Path], None]:
    return lambda folder: edit(folder, change)


def fewer_values(folder: Path) -> None:
    path = folder / "target_values.npy"
    np.save(path, np.load(path)[:-1])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(folder, lambda values: values["target"]["values"].update(sha256=digest))


CERTIFICATE, NETWORK, VALUES = (
    "certificate.json",
    "network.safetensors",
    "target_values.npy",
)
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no certificate": (remove(CERTIFICATE), "There is no file declared/certificate.json"),
    "no network": (remove(NETWORK), "There is no file declared/network.safetensors"),
    "no values": (remove(VALUES), "There is no file declared/target_values.npy"),
    "half a certificate": (cut(CERTIFICATE), "is not a certificate that can be read"),
    "an empty certificate": (replace(CERTIFICATE, b""), "is not a certificate that can be"),
    "no JSON": (replace(CERTIFICATE, b"{"), "read: it is not JSON (Expecting"),
    "no object": (replace(CERTIFICATE, b"[]"), "is not a certificate that can be read"),
    "no text": (replace(CERTIFICATE, b"\xff\x00"), "is not a certificate that can be read"),
    "brackets": (replace(CERTIFICATE, b"[" * 10**5), "is not a certificate that can be"),
    "another version": (edited(lambda c: c.update(version=2)), "version 2"),
    "a claim missing": (edited(lambda c: c.pop("claim")), "the entry 'claim' is missing"),
    "no number": (edited(claim("small")), "is not the text of a rational"),
    "half a network": (cut(NETWORK), "does not hold the weights of a network"),
    "another hash": (
        edited(lambda c: c["weights"].update(sha256="0" * 64)),
        "but the certificate is about weights with 0000000000000000",
    ),
    "other weights": (flip_last_bit(NETWORK), "has sha256"),
    "other values": (flip_last_bit(VALUES), "is not the file that the certificate names"),
    "fewer values": (fewer_values, "They do not belong together"),
    "other sizes": (edited(lambda c: c["claim"].update(n=2)), "n, d = (2, 1)"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_verdict_on_damaged_files(
    damage: str, everyformer: Command, declared_4: Path
) -> None:
    change, message = DAMAGES[damage]
    change(declared_4)
    before = contents()
    result = everyformer("verify", declared_4, "--json", code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert message in " ".join(result.stderr.split())
    assert contents() == before


def test_no_verdict_on_another_expression(everyformer: Command, swap_mean_4: Path) -> None:
    edit(swap_mean_4, lambda c: c["target"]["expression"].update(outputs=[[0], [1], [2]]))
    assert (
        "is not the one that its hash names"
        in everyformer("verify", swap_mean_4, code=2).stderr
    )


def test_no_verdict_on_the_network_of_another_folder(
    everyformer: Command, swap_mean_4: Path
) -> None:
    everyformer("construct", "sort", "--grid", 2, "-o", "other")
    shutil.copy("other/network.safetensors", swap_mean_4)
    told = everyformer("verify", swap_mean_4, code=2).stderr
    assert "One of the two was changed or belongs elsewhere" in told


def test_a_folder_without_certificate(everyformer: Command) -> None:
    everyformer("construct", "sort", "--grid", 2, "--no-certificate", "-o", "out")
    told = everyformer("verify", "out", code=2).stderr
    assert told.startswith("Error: There is no file out/certificate.json.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere' does not exist"),
        (
            ["out/network.safetensors"],
            ": 'out/network.safetensors' is a file, not a folder",
        ),
        ([], "Missing argument"),
        (["out", "--target", "mine.py:longer"], "swap_mean has n = 4, d = 1"),
        (["out", "--target", "mine.py:elsewhere"], "d = 1 on [-1, 1]; the certificate"),
        (["out", "--target", "mine.py:untraceable"], "branching has no expression"),
        (["out", "--target", "mine.py:none"], "mine.py has no attribute 'none'"),
        (["out", "--target", "none.py:same"], "There is no file none.py"),
        (["out", "--target", "nonsense"], "nor a target of the gallery"),
        (["out", "--target", "mine.py:same", "-n", "3"], "whose size is in its file"),
        (["out", "--workers", "0"], "Invalid value for '--workers'"),
        (["out", "--work", "mine.py"], "cannot be kept in mine.py"),
    ],
)
def test_verify_refuses(
    arguments: list[str], message: str, everyformer: Command, swap_mean_4: Path
) -> None:
    write_targets(swap_mean_4)
    result = everyformer("verify", *arguments, "--json", code=2)
    assert result.stdout == ""
    assert "Error: " in result.stderr
    assert message in " ".join(result.stderr.split())
