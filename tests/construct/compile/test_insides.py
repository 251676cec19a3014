"""Steps of compiled networks are named by lines of the user's program, and hold."""

import linecache
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.model.insides import Inside
from everyformer.numerics.expression import Expression
from everyformer.targets import gallery
from everyformer.targets.places import caller, shown

Function = Callable[[Any], Any]
RNG = np.random.default_rng(0)


def norm(x: Any) -> Any:
    c = x - x.mean(axis=-1, keepdims=True)
    return c / np.sqrt((c**2).mean(axis=-1, keepdims=True) + 1 / 128)


def block(x: Any) -> Any:
    s = -((x[..., :, None, :] - x[..., None, :, :]) ** 2).sum(axis=-1)
    w = np.exp(s)
    a = (w / w.sum(axis=-1, keepdims=True)) @ x
    m = x.mean(axis=-2, keepdims=True)
    c = np.clip(a - m, -0.125, 0.25)
    return norm(x) + np.tanh(c) * x


@pytest.fixture(scope="module")
def built() -> ef.Built:
    return ef.construct(ef.Target(block, 3, 2), tol=1e-3, method="compile")


def kinds(insides: tuple[Inside, ...]) -> dict[str, set[str]]:
    """The kinds of steps, by the text of the user's line."""
    found: dict[str, set[str]] = {}
    for inside in insides:
        text, _, place = inside.step.line.partition("  [")
        assert not place or place.startswith("test_insides.py:")
        word = inside.step.what.partition(" = ")[2] or inside.step.what
        found.setdefault(text, set()).add(word.split("(")[0].split(" ")[-1])
    return found


def test_steps_are_named_by_the_lines_that_they_compute(built: ef.Built) -> None:
    insides = built.network.trace(RNG.random((3, 2))).insides
    named = {
        text: " ".join(i.step.what for i in insides if i.step.line.startswith(text))
        for text in kinds(insides)
    }
    assert "= mean r" in named["m = x.mean(axis=-2, keepdims=True)"]
    assert "attend" in named["a = (w / w.sum(axis=-1, keepdims=True)) @ x"]
    assert "relu" in named["c = np.clip(a - m, -0.125, 0.25)"]
    assert "tanh" in named["return norm(x) + np.tanh(c) * x"]
    assert "a product" in named["return norm(x) + np.tanh(c) * x"]
    root = "return c / np.sqrt((c**2).mean(axis=-1, keepdims=True) + 1 / 128)"
    assert "pow^-1/2" in named[root]
    squares = "s = -((x[..., :, None, :] - x[..., None, :, :]) ** 2).sum(axis=-1)"
    assert "pow^2" in named[squares]
    assert sum("[test_insides.py:" in line for line in built.program.splitlines()) >= 12


def test_every_step_is_within_its_error(built: ef.Built) -> None:
    """The ideal value is computed in float64, to about 1e-12."""
    x = RNG.random((200, 3, 2)) ** 2
    trace = built.network.trace(x)
    assert {step.state.shape[:2] for step in trace} == {(200, len(trace[0].state[0]))}
    assert len(trace.insides) > 20
    for inside in trace.insides:
        step = inside.step
        assert inside.value.shape == inside.ideal.shape == (200, 3)
        assert np.abs(inside.value - inside.ideal).max() <= step.e + step.r + 1e-11
        slack = 1e-11
        assert step.low - slack <= inside.ideal.min() <= inside.ideal.max()
        assert inside.ideal.max() <= step.high + slack
    off = max(np.abs(i.value - i.ideal).max() for i in trace.insides)
    assert off > 1e-9  # heads approximate: value and ideal are not the same run
    results = np.stack([i.ideal for i in trace.insides if "result" in i.step.what], -1)
    np.testing.assert_allclose(results, block(x), atol=1e-11)


def test_the_table_is_saved(built: ef.Built, tmp_path: Path) -> None:
    x = RNG.random((3, 2))
    built.network.save(tmp_path / "network.safetensors")
    again = ef.load(tmp_path / "network.safetensors")
    assert str(again.trace(x)) == str(built.network.trace(x))
    assert str(again.trace(x)).startswith("block   what ")
    first = next(i for i in again.trace(x).insides if i.step.e > 0)
    assert f"{first.step.e:.1e}" in first.row()
    old = replace(again, program=replace(again.program, steps=()))  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert old.trace(x).insides == ()


def test_functions_of_the_library_and_of_numpy() -> None:
    named = ef.construct(gallery.soft_attention(2, 1), tol=1e-3, method="compile").program
    assert "[gallery.py:" in named
    plain = ef.construct(ef.Target(np.tanh, 2, 1, name="tanh"), tol=1e-3, method="compile")  # pyright: ignore[reportArgumentType]
    assert "tanh (line " in plain.program
    assert ".py" not in plain.program


def test_places_are_no_part_of_a_program() -> None:
    expression = ef.Target(block, 3, 2).expression
    assert expression is not None
    assert len(expression.places) == len(expression.nodes)
    again = Expression.from_json(expression.to_json())
    assert again == expression
    assert again.places == ()
    place = caller()
    assert place is not None
    assert shown(place).startswith("place = caller()  [test_insides.py:")


def function_of(source: str, name: str) -> Function:
    """What a file of this name would define."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"np": np}
    exec(compile(source, name, "exec"), space)
    return space["f"]


def test_names_of_files_do_not_move_the_cursor() -> None:
    """The user's words are shown, without what a terminal obeys."""
    f = function_of(
        "def f(x):\n    return np.tanh(x)  # \x1b]0;owned\x07 \u202e [bold]\n",
        "evil\x1b[2J\n[red].py",
    )
    built = ef.construct(ef.Target(f, 2, 1), tol=1e-3, method="compile")
    text = f"{built.program}\n{built.network.trace(np.zeros((2, 1)))}"
    assert "np.tanh(x)  # ?]0;owned? ? [bold]  [evil?[2J?[red].py:2]" in text
    assert all(c.isprintable() or c == "\n" for c in text)


def test_claims_of_others_do_not_stop_a_trace(built: ef.Built) -> None:
    """Nothing is known of the ideal value; the run is what it is."""
    said, x = built.network.program, RNG.random((3, 2))
    assert said is not None
    for claims in (
        {},
        {"blocks": 7},
        {"blocks": [{"heads": [{"step": "unary"}] * 99}] * 99},
    ):
        network = replace(built.network, program=replace(said, claims=claims))
        insides = network.trace(x).insides
        assert all(np.isnan(i.ideal).all() and np.isfinite(i.value).all() for i in insides)
        assert "nan" in str(network.trace(x))
    far = replace(said.steps[0], slot=10**6), replace(said.steps[0], reads=((10**6, 1.0),))
    network = replace(built.network, program=replace(said, steps=far))
    assert network.trace(x).insides == ()
