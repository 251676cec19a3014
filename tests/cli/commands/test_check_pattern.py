"""`everyformer check-pattern`: verdicts, files of the user's, drawings, wrong input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., Any]
RING = "# a ring\n1 2\n2 3\n3 1\n"
HALF = ("--with", "half_width=1")
LOOPS = ("--with", "self_loops=true")
MINE = """
import networkx, numpy
from everyformer import patterns
graph = networkx.cycle_graph(3)
ring = patterns.union(patterns.ring(5), patterns.star(5))
masks = numpy.ones((2, 4, 4), dtype=bool)
number = 3
"""


def flat(text: str) -> str:
    return " ".join(text.split())


def test_strided_is_proved(everyformer: Command) -> None:
    out = everyformer("check-pattern", "strided", "-n", 64, "--with", "width=8").stdout
    assert out.startswith("strided is universal in L^p: PROVED (n = 64)")
    assert "[Yun et al. 2020b, Theorem 1]" in flat(out)
    for part in ("connections 556 / 512", "gamma 1, 2, 3,", "s 3", "A1.3 receptive-fields"):
        assert part in flat(out)
    assert "⣿" in out
    assert max(map(len, out.splitlines())) <= 92


def test_fixed_is_refuted_and_repaired(everyformer: Command) -> None:
    fixed = ("check-pattern", "fixed", "-n", 14, "--with", "width=4")
    out = flat(everyformer(*fixed, code=1).stdout)
    assert "token 1 never hears token 13 (1-based)" in out
    assert "f(X)_1 = x_13" in out
    assert "s none" in out
    everyformer(*fixed, "--with", "repaired=true")


def test_bare_star_and_maps(everyformer: Command) -> None:
    star = ("check-pattern", "bare-star", "-n", 5)
    assert "Zaheer et al. 2020, Theorem 1" in flat(everyformer(*star, code=3).stdout)
    everyformer(*star, "--rho", "sparsemax", code=3)
    everyformer("check-pattern", "ring", "--rho", "sum-normalisation", code=3)
    everyformer("check-pattern", "ring", "--rho", "entmax:1.5")


def test_causal_parts(everyformer: Command) -> None:
    """Every token attends to the one before it, or only to the relay, token 1."""
    strided = ("check-pattern", "strided", "-n", 8, "--with", "width=3", "--causal")
    assert "at best causal functions" in flat(everyformer(*strided, code=1).stdout)
    star = ("check-pattern", "bare-star", "-n", 5, "--causal")
    assert "does not have all causal functions" in flat(everyformer(*star, code=1).stdout)


def test_parameters_and_unions(everyformer: Command) -> None:
    axial = ("check-pattern", "axial", "--with", "rows=3", "--with", "columns=4")
    out = everyformer(*axial, "--json").stdout
    assert json.loads(out)["assumption_1"]["gamma"][4] == 8
    dilated = ("check-pattern", "dilated", "-n", 12, "--with", "half_width=1")
    assert "6" in everyformer(*dilated, "--with", "dilations=1,3").stdout
    union = json.loads(
        everyformer(
            "check-pattern", "strided", "--with", "width=4", "--union", "--json"
        ).stdout
    )
    assert union["connections"] == [122]
    tokens = ("--with", "half-width=1", "--with", "global_tokens=1,6")
    everyformer("check-pattern", "window-global", "-n", 6, *tokens)


def test_files_of_the_users(everyformer: Command, tmp_path: Path) -> None:
    (tmp_path / "ring.txt").write_text(RING)
    ring = ("check-pattern", "ring.txt", "-n", 3)
    report = json.loads(everyformer(*ring, *LOOPS, "--json").stdout)
    assert report["subject"] == "ring"
    assert report["assumption_1"]["s"] == 2
    everyformer(*ring, code=3)
    (tmp_path / "back.txt").write_text("0,2\n2,1\n1,0\n")
    error = everyformer("check-pattern", "back.txt", "-n", 3, code=2).stderr
    assert "1..3 (1-based)" in error
    both = ("back.txt", "-n", 3, "--with", "zero_based=true", *LOOPS)
    everyformer("check-pattern", *both)
    masks = np.stack([np.eye(4, dtype=bool), np.tri(4, dtype=bool)])
    np.save(tmp_path / "masks.npy", masks)
    out = everyformer("check-pattern", "masks.npy", code=1).stdout
    assert "token 1 never hears token 4" in flat(out)
    np.save(tmp_path / "turned.npy", masks.transpose(0, 2, 1))
    cycled = json.loads(
        everyformer("check-pattern", "masks.npy,turned.npy", "--json").stdout
    )
    assert cycled["connections"] == [4, 10, 4, 10]


def test_patterns_in_a_python_file(everyformer: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)

    def connections(*arguments: object, code: int = 0) -> list[int]:
        shown = everyformer("check-pattern", "--json", *arguments, code=code).stdout
        return json.loads(shown)["connections"]

    assert connections("mine.py:graph", *LOOPS) == [9]
    assert connections("mine.py:graph", code=3) == [6]
    assert connections("mine.py:ring", "-n", 5) == [21]
    assert connections("mine.py:masks") == [16, 16]


def test_files_of_spreadsheets_and_a_single_global_token(
    everyformer: Command, tmp_path: Path
) -> None:
    (tmp_path / "ring.csv").write_bytes(b"\xef\xbb\xbf1,2\r\n2,3\r\n3,1\r\n")
    everyformer("check-pattern", "ring.csv", "-n", 3, *LOOPS)
    window = ("check-pattern", "--json", "window-global", "-n", 9, *HALF)
    several = json.loads(everyformer(*window, "--with", "global_tokens=5").stdout)
    one = json.loads(everyformer(*window, "--with", "global_tokens=5,").stdout)
    assert (several["connections"], one["connections"]) == ([75], [37])


def test_what_was_not_counted_is_not_called_none(everyformer: Command) -> None:
    window = ("check-pattern", "window", "-n", 300, *HALF, "--time-limit", 0)
    assert "s not counted" in flat(everyformer(*window).stdout)


def test_a_gamma_of_the_users(everyformer: Command, tmp_path: Path) -> None:
    ring = ("check-pattern", "ring", "-n", 4)
    assert "verified" in everyformer(*ring, "--gamma", "3,4,1,2").stdout
    (tmp_path / "gamma.txt").write_text("2 3 0 1")
    everyformer(*ring, "--gamma", "gamma.txt", "--with", "zero_based=true")
    error = everyformer(*ring, "--gamma", "1,2,4,3", code=2).stderr
    assert "gamma(2) = 2 is not among the tokens that gamma(3) = 4 attends to" in error


def test_a_map_of_the_users(everyformer: Command, tmp_path: Path) -> None:
    (tmp_path / "maps.py").write_text("def shares(v):\n    return abs(v) / abs(v).sum()\n")
    rho = ("check-pattern", "ring", "-n", 4, "--rho")
    out = flat(everyformer(*rho, "maps.py:shares", code=3).stdout)
    assert "A2 one-hot condition UNKNOWN shares: on v = " in out
    assert "no function 'other'" in everyformer(*rho, "maps.py:other", code=2).stderr


def test_pictures_and_folders(everyformer: Command, tmp_path: Path) -> None:
    star = ("check-pattern", "star", "-n", 9)
    out = everyformer(*star, "--picture", "star.png", "-o", "out").stdout
    assert "Wrote star.png, out." in out
    assert (tmp_path / "star.png").stat().st_size > 1000
    assert {one.name for one in (tmp_path / "out").iterdir()} == {
        "report.json",
        "pattern.png",
    }
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verdict"] == "PROVED"
    everyformer(*star, "-o", "out", code=2)
    everyformer(*star, "--picture", "nowhere/star.png", code=2)


def test_assumptions_are_explained(everyformer: Command) -> None:
    assert "permutation gamma" in everyformer("explain", "a1.2").stdout
    assert "rho[t v]" in everyformer("explain", "A2").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("strided",), "width=None; in the shell: -n N --with KEY=VALUE"),
        (("strided", "--with", "width=0"), "width=0"),
        (("strided", "-n", 0, "--with", "width=2"), "Invalid value for '--seq-len'"),
        (("ring", "--with", "width=2"), "no parameter width"),
        (("rings",), "no pattern 'rings'"),
        (("ring", "--with", "n"), "KEY=VALUE"),
        (("ring", *LOOPS), "files of edges"),
        (("ring", "--rho", "softmin"), "no probability map"),
        (("ring", "--gamma", "a,b"), "--gamma a,b"),
        (("axial", "-n", 12, "--with", "rows=3", "--with", "columns=4"), "no parameter n"),
        (("nowhere.txt", "-n", 3), "There is no file nowhere.txt"),
        (("edges.txt",), "for example -n 3"),
        (("edges.txt", "-n", 4), "token 4 (1-based)"),
        (("edges.txt", "-n", 2), "tokens are 1..2 (1-based)"),
        (("edges.txt", "-n", 3, "--with", "width=2"), "width makes a pattern by name"),
        (("words.txt", "-n", 3), "words.txt, line 1"),
        (("twice.txt", "-n", 2), "repeated: (1, 2) (1-based)"),
        (("floats.npy",), "dtype float64"),
        (("cube.npy",), "(1, 1, 1, 1)"),
        (("flat.npy", "-n", 3), "2 tokens, not for n=3"),
        (("broken.npy",), "numpy.save"),
        (("latin.txt", "-n", 3), "latin.txt is not text in UTF-8"),
        (("ring", "--gamma", "latin.txt"), "latin.txt is not text in UTF-8"),
        (("nothing.txt",), "The list of edges is empty"),
        (("masks.npz",), "'masks.npz' is neither a pattern's name nor a file"),
        (("ring", "--with", "n=3"), "use -n for that"),
        (("ring", "--with", "seed=3"), "ring: no parameter seed"),
        (("ring", "--with", "self_loops=1"), "write true or false"),
        (("ring", "--with", "a=3", "--with", "a=4"), "a is given twice, 3 and 4"),
        (("window-global", *HALF, "--with", "global_tokens=1,17"), "1..16 (1-based)"),
        (("ring", "--rho", "maps.py"), "maps.py:function"),
        (("ring", "--rho", "maps.py:fails"), "fails on the scores (1, 0): KeyError"),
        (("mine.py:graph", "-n", 4), "is for 3 tokens, not for n=4"),
        (("mine.py:number",), "of type int, not a pattern"),
        (("mine.py:nothing",), "of type NoneType, not a pattern"),
        (("mine.py:ring", *LOOPS), "self_loops=true is for edges and graphs"),
    ],
)
def test_wrong_input(
    arguments: tuple[object, ...], text: str, everyformer: Command, tmp_path: Path
) -> None:
    for name, content in {
        "edges.txt": RING,
        "words.txt": "one two\n",
        "twice.txt": "1 2\n2 1\n1 2\n",
        "broken.npy": "?",
        "nothing.txt": "# nothing\n",
        "maps.py": "def fails(v):\n    raise KeyError(1)\n",
        "mine.py": MINE,
    }.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "latin.txt").write_bytes("1 2 # é".encode("latin-1"))
    np.save(tmp_path / "floats.npy", np.ones((2, 2)))
    np.save(tmp_path / "cube.npy", np.ones((1, 1, 1, 1), dtype=bool))
    np.save(tmp_path / "flat.npy", np.ones((2, 2), dtype=bool))
    shown = everyformer("check-pattern", *arguments, code=2).stderr
    assert text in flat(shown)
