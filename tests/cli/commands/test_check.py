"""`everyformer check`, `check-module` and `check-all`.

Exit code 0 PROVED, 1 REFUTED, 3 UNKNOWN, 2 wrong input.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., Any]
EXAMPLE = Path(__file__).parents[3] / "examples" / "my_attention.py"
SMALL = ("-n", 4, "-d", 4, "--trials", 2)

MODULES = """
import torch
from torch import nn

print("read")

class Needs(nn.Module):
    def __init__(self, width, secret):
        super().__init__()

class Breaks(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        raise RuntimeError("no")

class Shrinks(nn.Module):
    def forward(self, x):
        return x[:, :1]

class Dict(nn.Module):
    def forward(self, x):
        return {"x": x}

def make():
    return nn.Identity()

class Prints(nn.Module):
    def forward(self, x):
        print("running")
        return x

def leave():
    raise SystemExit(1)

three = 3
"""


def test_urpe_is_proved(everyformer: Command) -> None:
    out = everyformer("check", "urpe", *SMALL, code=0).stdout
    assert out.startswith("urpe is universal in L^p: PROVED (n = 4, d = 4)")
    assert "Luo et al. 2022, Proposition 4" in out


def test_rpe_is_refuted_with_a_bound(everyformer: Command) -> None:
    out = everyformer("check", "rpe", *SMALL, code=1).stdout
    assert "rpe is universal in the sup norm: REFUTED (n = 4, d = 4)\n  equal tokens" in out
    assert "at least 0.866" in " ".join(out.split())
    assert "Ways out" in " ".join(out.split())


def test_shaw_with_values_is_unknown(everyformer: Command) -> None:
    everyformer("check", "shaw-values", *SMALL, code=3)


def test_a_module_of_ones_own(everyformer: Command) -> None:
    out = everyformer("check-module", f"{EXAMPLE}:MyAttention", *SMALL, code=1).stdout
    assert "every operation maps equal tokens to equal tokens" in " ".join(out.split())
    out = everyformer("check-module", f"{EXAMPLE}:WithGain", *SMALL, code=3).stdout
    assert ":WithGain is universal in L^p: UNKNOWN (n = 4, d = 4)\n  a black box" in out


def test_json(everyformer: Command) -> None:
    found = json.loads(everyformer("check", "t5", *SMALL, "--json", code=1).stdout)
    assert found["verdict"] == "REFUTED"
    assert found["universal"]["sup"]["lower_bound"] == pytest.approx(0.75**0.5)
    assert [rule["code"] for rule in found["findings"]][:2] == ["EF001", "EF002"]


def test_counterexamples_are_written_and_run_again(
    everyformer: Command, tmp_path: Path
) -> None:
    everyformer("check", "urpe", *SMALL, "-o", "out", code=0)
    out = tmp_path / "out"
    assert {"report.json", "EF003.npy", "EF003.json", "equal_tokens.png"} <= {
        path.name for path in out.iterdir()
    }
    assert (out / "bias_and_gain.png").stat().st_size > 1000
    assert (out / "position_head.png").stat().st_size > 1000
    X = np.load(out / "EF003.npy")
    assert (X[0] == X).all()
    again = ("--replay", "out/EF003.npy")
    shown = everyformer("check", "urpe", *SMALL, *again, code=1).stdout
    measured = json.loads((out / "EF003.json").read_text())["violation_sampled"]
    assert f"violated by {measured}" in shown
    np.save(out / "EF003.npy", np.arange(16.0).reshape(4, 4))
    everyformer("check", "none", *SMALL, "--replay", "out/EF001.npy", code=0)
    everyformer("check", "urpe", "-n", 5, "-d", 4, *again, code=2)


def test_layers_in_a_table(
    everyformer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all layers, some here; each is judged in tests/checks/test_rules.py."""
    some = ("none", "rotary", "alibi", "ape", "urpe")
    monkeypatch.setattr("everyformer.cli.checking.LAYER_NAMES", some)
    out = everyformer("check-all", "-n", 4, "-d", 4, "--trials", 2, "-o", "out").stdout
    lines = {line.split()[0]: line.split()[1] for line in out.splitlines()[1:-1]}
    assert list(lines) == [*some[:-1], *(f"{name}+urpe" for name in some[:-1])]
    assert lines["none"] == lines["rotary"] == "REFUTED"
    assert lines["none+urpe"] == lines["ape"] == "PROVED"
    assert lines["alibi+urpe"] == "UNKNOWN"
    assert (tmp_path / "out" / "spreads.png").stat().st_size > 1000
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {one["subject"]: one["verdict"] for one in written} == lines


def test_explain(everyformer: Command) -> None:
    out = everyformer("explain", "ef003").stdout
    assert out.startswith("EF003: equal tokens stay equal.")
    assert "Satisfied by:" in out
    assert "Kind: obstacle: PROVED is bad news" in out
    assert "Kind: condition: PROVED is good" in everyformer("explain", "A1").stdout
    assert "permutation" in everyformer("explain", "EF9", code=2).stderr


def test_a_module_without_heads_may_be_one_number_wide(
    everyformer: Command, tmp_path: Path
) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\nclass Sum(torch.nn.Module):\n"
        "    def forward(self, x): return x.cumsum(-2)\n"
    )
    told = everyformer("check-module", "m.py:Sum", "-n", 4, "-d", 1, code=1).stdout
    assert "token 1 never hears token 4" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("check",), "Missing argument 'LAYER'"),
        (("check", "nope"), "is not a layer of the library"),
        (("check", "m.py:make"), "`everyformer check-module` one of your own"),
        (("check", "t5+nope"), "is not a layer of the library"),
        (("check", "t5", "-n", 1), "n >= 2"),
        (("check", "t5", "-d", 7), "--d-model 7 is not a multiple of --heads 2"),
        (("check", "swin", "-n", 5), "no square window"),
        (("check", "none+"), "is not a layer of the library"),
        (("check", "t5", "-o", "full"), "not empty"),
        (("check", "t5", "--replay", "m.py"), "is not a counterexample"),
        (("check", "t5", "--replay", "m.py", "-o", "new"), "--replay writes nothing"),
        (("check-module", "urpe"), "'urpe' is not file.py:attribute"),
        (("check-module", "nothing.py:x"), "There is no file"),
        (("check-module", "m.py:nothing"), "has no attribute"),
        (("check-module", "m.py:three"), "not a torch.nn.Module"),
        (("check-module", "m.py:Needs"), "needs secret"),
        (("check-module", "m.py:Breaks"), "RuntimeError: no"),
        (("check-module", "m.py:leave"), "SystemExit: 1"),
        (("check-module", "m.py:Shrinks"), "does not map sequences"),
        (("check-module", "m.py:Dict"), "returned dict"),
    ],
)
def test_wrong_input(
    everyformer: Command, tmp_path: Path, arguments: tuple[Any, ...], told: str
) -> None:
    (tmp_path / "m.py").write_text(MODULES)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    result = everyformer(*arguments, code=2)
    assert told in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_modules_may_print(everyformer: Command, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULES)
    out = everyformer("check-module", "m.py:Prints", *SMALL, "--json", code=1).stdout
    assert json.loads(out)["verdict"] == "REFUTED"


def test_replay_asks_for_inputs_that_can_be_counterexamples(
    everyformer: Command, tmp_path: Path
) -> None:
    everyformer("check", "urpe", *SMALL, "-o", "out", code=0)
    place = tmp_path / "out" / "EF003.npy"
    again = ("check", "urpe", *SMALL, "--replay", "out/EF003.npy")
    shown = json.loads(everyformer(*again, "--json", code=1).stdout)
    assert shown["violation_sampled"] == shown["was"]
    np.save(place, np.arange(16.0).reshape(4, 4))
    assert "cannot be a counterexample" in everyformer(*again, code=2).stderr
    np.save(place, np.full((4, 4), 1e300))
    assert "cannot be measured" in " ".join(everyformer(*again, code=2).stderr.split())
    place.write_bytes(b"")
    assert "is not a counterexample" in everyformer(*again, code=2).stderr


def test_a_function_that_makes_a_module(everyformer: Command, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULES)
    out = everyformer("check-module", "m.py:make", *SMALL, "--json", code=1).stdout
    assert json.loads(out)["universal"]["lp"]["verdict"] == "REFUTED"


def test_a_mixer_with_and_without_feed_forward_layers(
    everyformer: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from everyformer.layers import BilinearProjection\n\n\n"
        "def mixer(seq_len, d_model):\n    return BilinearProjection(d_model, seq_len)\n"
    )
    given = ("check-module", f"{file}:mixer", "-n", 3, "-d", 2, "--json")
    found = json.loads(everyformer(*given).stdout)
    assert found["universal"]["lp"]["source"] == "docs/mixers.md"
    found = json.loads(everyformer(*given, "--no-feed-forward", code=1).stdout)
    assert found["universal"]["lp"]["target"] == "f(X)_11 = |x_11 - 1/2|"


def test_rules_say_what_their_verdict_means(everyformer: Command) -> None:
    shown = everyformer("check", "t5", *SMALL, code=1).stdout
    told = " ".join(shown.split())
    assert "equal-tokens-stay-equal obstacle PROVED bad " in told
    assert "permutation-equivariant obstacle REFUTED good " in told
    assert "attentive condition PROVED good " in told
    assert "position-aware condition REFUTED A 1 = 1" in told
    assert "obstacle: PROVED is bad news" in told
    found = json.loads(everyformer("check", "t5", *SMALL, "--json", code=1).stdout)
    assert found["findings"][2]["kind"] == "obstacle"
