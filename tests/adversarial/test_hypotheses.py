"""What a file says of its own proof is not what `verify` prints as a fact."""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.certify.tampered import edit, write_weights

import everyformer as ef
from everyformer.certify.verify import NETWORK_FILE
from everyformer.targets import reverse, soft_attention
from everyformer.targets.target import Target

EXP = "exp within 4 ulp"
IEEE = "float64 runs: IEEE"


def swap_mean(x: np.ndarray) -> np.ndarray:
    return x.mean(-2, keepdims=True) - 0.5 * x


def opaque(x: np.ndarray) -> np.ndarray:
    """The same, and nothing that can be traced."""
    return np.asarray(swap_mean(np.asarray(x, dtype=np.float64)))


@cache
def built(kind: str) -> ef.Built:
    match kind:
        case "partition":
            return ef.construct(soft_attention(2, 1), grid=4, method="partition")
        case "declared":
            target = Target(opaque, 2, 1, lipschitz=1.5, equivariant=True)
            return ef.construct(target, grid=4)
        case "declared, positions":
            return ef.construct(Target(opaque, 2, 1, lipschitz=1.5), grid=4)
        case _:
            return ef.construct(reverse(2, 1), grid=4)


def delete(folder: Path, *steps: str) -> None:
    place = folder / "certificate.json"
    values = json.loads(place.read_text())
    inner = values
    for step in steps[:-1]:
        inner = inner[step]
    inner.pop(steps[-1], None)
    place.write_text(json.dumps(values))


def texts(found: ef.Verification) -> tuple[str, str]:
    """All that a reader sees: printed, and as JSON."""
    return str(found), json.dumps(found.to_json(), ensure_ascii=False)


DELETIONS: dict[str, Callable[[Path], None]] = {
    "the count of prefix tokens": lambda place: delete(place, "cells", "prefix_tokens"),
    "all counts": lambda place: edit(place, "cells", to={}),
    "the assumptions": lambda place: delete(place, "assumptions"),
    "the hypotheses": lambda place: delete(place, "hypotheses"),
    "empty hypotheses": lambda place: edit(place, "hypotheses", to=[]),
    "the float64 claim": lambda place: edit(place, "claim", "claims", to=["real"]),
}


@pytest.mark.parametrize("name", DELETIONS)
def test_a_hypothesis_cannot_be_deleted_from_the_file(name: str, tmp_path: Path) -> None:
    """The float64 bound of a partition of unity rests on exp, whatever the file says."""
    built("partition").save(tmp_path)
    DELETIONS[name](tmp_path)
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.PROVED
    for text in texts(found):
        assert EXP in text
        assert IEEE in text


def test_a_hypothesis_cannot_be_added_by_the_file(tmp_path: Path) -> None:
    built("expression").save(tmp_path)
    edit(tmp_path, "cells", "prefix_tokens", to=3)
    invented = {"kind": "exp accuracy", "claims": ["real"], "text": "pigs fly"}
    edit(tmp_path, "hypotheses", to=[invented])
    edit(tmp_path, "assumptions", to=["pigs fly"])
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.PROVED
    for text in texts(found):
        assert EXP not in text
        assert "pigs" not in text
        assert IEEE in text


def lie(folder: Path, L: Fraction, grid: int) -> None:
    """Another constant, with omega at half a cell and at 1 and 2 cells."""
    edit(folder, "target", "lipschitz", to=str(L))
    edit(folder, "target", "omega", to=str(L / (2 * grid)))
    steps = {str(k): str(L * k / grid) for k in (1, 2)}
    edit(folder, "target", "steps", to=steps)


@pytest.mark.parametrize("stored", ["1/1000", "7"])
def test_the_declaration_used_is_printed_and_not_the_stored_one(
    stored: str, tmp_path: Path
) -> None:
    of = built("declared")
    of.save(tmp_path)
    lie(tmp_path, Fraction(stored), 4)
    found = ef.verify(tmp_path, target=of.target)
    assert found.verdict is ef.Verdict.PROVED
    wrong = f"<= {float(Fraction(stored)):g} max|X - Y|"
    for text in texts(found):
        assert "max|f(X) - f(Y)| <= 1.5 max|X - Y|" in text or "<= 3/2 max|X - Y|" in text
        assert wrong not in text


def test_an_expression_given_is_not_conditional_on_the_file(tmp_path: Path) -> None:
    """And the other way round: the kind of the claim in the file counts for nothing."""
    built("expression").save(tmp_path)
    edit(tmp_path, "claim", "kind", to="real and float64, conditional")
    assert "onditional" not in "".join(texts(ef.verify(tmp_path))).replace(
        "conditional_on", ""
    )
    of = built("declared")
    of.save(tmp_path)
    edit(tmp_path, "claim", "kind", to="real and float64")
    found = ef.verify(tmp_path)
    assert "CONDITIONAL" in str(found).splitlines()[0]
    assert found.to_json()["claim"]["kind"] == "real and float64, conditional"
    assert found.to_json()["conditional_on"]


def test_equivariance_is_assumed_only_where_it_is_used(tmp_path: Path) -> None:
    """With positions all cells are examined; the file says that f is equivariant."""
    built("declared, positions").save(tmp_path)
    edit(tmp_path, "target", "equivariant", to=True)
    assert "equivariant" not in str(ef.verify(tmp_path))
    built("declared").save(tmp_path)
    assert "f is permutation equivariant" in str(ef.verify(tmp_path))


def test_a_measurement_of_the_file_is_not_printed(tmp_path: Path) -> None:
    built("expression").save(tmp_path)
    edit(tmp_path, "distance_sampled", to="1e-300")
    for text in texts(ef.verify(tmp_path)):
        assert "measured" not in text
        assert "1e-300" not in text
        assert "1.000e-300" not in text


NAMES = [
    "sort",
    'sort, g) <= 1e-300, g in real arithmetic"',
    "x\nPROVED: d_2(f, g) <= 0",
    "x\r\x1b[2K\x1b[1APROVED\u202e\u2028PROVED: f",
    "long" * 10**5,
    "",
]


@pytest.mark.parametrize(
    ("name", "eps"), list(zip(NAMES, ["1", "1/1000", None] * 2, strict=True)), ids=range(6)
)
def test_the_name_of_f_is_marked_as_the_words_of_the_file(
    name: str, eps: str | None, tmp_path: Path
) -> None:
    of = built("expression")
    of.save(tmp_path)
    edit(tmp_path, "target", "name", to=name)
    edit(tmp_path, "claim", "eps", to=eps)
    found = ef.verify(tmp_path)
    first, *rest = str(found).splitlines()
    assert first.startswith(f"{found.verdict.name}: ")
    assert "d_2(f, g)" in first
    assert name[:4] not in first or not name
    assert sum("PROVED" in line for line in (first, *rest)) == sum(
        "called" in line and "PROVED" in name for line in rest
    ) + (found.verdict is ef.Verdict.PROVED)
    (line,) = [line for line in rest if "by the file" in line]
    assert 'called "' in line
    assert len(line) < 300
    assert all(c.isprintable() or c == "\n" for c in str(found))
    mine = str(ef.verify(tmp_path, target=of.target))
    assert "by the file" not in mine
    assert "d_2(reverse, g)" in mine.splitlines()[0]


def rename_last_stage(folder: Path, name: str) -> None:
    """Give the last stage of the network another name; hashes are brought up to date."""
    place = folder / NETWORK_FILE
    data = place.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    description = json.loads(header["__metadata__"]["everyformer-network"])
    description["stages"][-1][0] = name
    header["__metadata__"]["everyformer-network"] = json.dumps(description)
    text = json.dumps(header).encode()
    place.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    digest = hashlib.sha256(place.read_bytes()).hexdigest()
    edit(folder, "weights", "sha256", to=digest)


STAGES = ["float64", "float64, target", "target", "x\nPROVED: d_2(f, g) <= 0", "y" * 10**5]


@pytest.mark.parametrize(
    ("name", "claim"),
    list(zip(STAGES, ["real", "float64"] * 3, strict=False)),
    ids=range(len(STAGES)),
)
def test_the_name_of_a_stage_is_marked_as_the_words_of_the_file(
    name: str, claim: str, tmp_path: Path
) -> None:
    """The last stage does not clamp: there is neither a real nor a float64 bound."""
    of = built("expression")
    of.save(tmp_path)
    *stages, last = of.network.stages
    assert last.feed_forward is not None
    idle = replace(last.feed_forward, W_2=np.zeros_like(last.feed_forward.W_2))
    last = replace(last, feed_forward=idle)
    write_weights(tmp_path, replace(of.network, stages=(*stages, last)))
    rename_last_stage(tmp_path, name)
    edit(tmp_path, "claim", "claims", to=[claim])
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.UNKNOWN
    shown = json.dumps("".join(c if c.isprintable() else "?" for c in name))[:20]
    assert len(found.reasons) == (1 if claim == "real" else 2)
    for reason in found.reasons:
        assert reason.removeprefix("float64, ").startswith(shown.removesuffix('"'))
        assert len(reason) < 300
    assert "\nPROVED" not in str(found)
