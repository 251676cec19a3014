"""The page's executor against `network(x)` and `network.trace(x)`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.explore.conftest import CONSTRUCTIONS, ONE_HOT

import everyformer as ef

COUNT = 20


def inputs(network: ef.Network) -> np.ndarray:
    """Random sequences; duplicates, borders and their neighbours, ramps, outside."""
    n, d = network.architecture.seq_len, network.architecture.d_model
    known = network.construction
    x = np.random.default_rng(0).random((COUNT, n, d))
    x[1] = x[1, 0]
    x[2], x[3] = 0.0, 1.0
    x[4, 0] = 0.5
    x[5, 0] = np.nextafter(0.5, 0)
    x[6, 0] = np.nextafter(0.5, 1)
    if known is not None and known.ramp_width:
        for k, share in enumerate((0.1, 0.5, 0.9)):
            x[7 + k, 0] = 0.5 - share * float(known.ramp_width)
    if known is not None and known.reach:
        x[10, 0], x[11, -1] = 1.125, -0.25
    return x


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_the_page_computes_what_the_network_computes(
    name: str,
    built: Callable[[str], ef.Built],
    written: Callable[[str], Path],
    opened: Callable[..., Any],
) -> None:
    network, target = built(name).network, built(name).target
    page = opened(written(name))
    x = inputs(network)
    flat = x.reshape(COUNT, -1).tolist()
    shape = (COUNT, *x.shape[1:])
    outputs = np.array(page.evaluate("X => X.map(everyformer.evaluate)", flat))
    states = page.evaluate("X => X.map(everyformer.trace)", flat)
    values = np.array(page.evaluate("X => X.map(everyformer.f)", flat))
    exact = name in ONE_HOT
    tiny = 0 if exact else 1e-13
    np.testing.assert_allclose(outputs.reshape(shape), network(x), rtol=0, atol=tiny)
    prefix = network.architecture.num_prefix  # deaf tokens are not followed
    for one, found in zip(x, states, strict=True):
        for ours, theirs in zip(network.trace(one), found, strict=True):
            wanted = np.asarray(ours.state, dtype=float)
            here = np.array(theirs).reshape(wanted.shape)
            scale = max(1.0, float(np.abs(wanted).max()))
            assert np.abs(here - wanted)[prefix:].max() <= tiny * scale
    inside = (x >= 0).all(axis=(1, 2)) & (x <= 1).all(axis=(1, 2))
    np.testing.assert_allclose(
        values.reshape(shape)[inside], target(x[inside]), rtol=1e-14, atol=1e-15
    )


def test_what_is_shown_is_what_is_computed(
    built: Callable[[str], ef.Built],
    written: Callable[[str], Path],
    opened: Callable[..., Any],
) -> None:
    page = opened(written("theorem-2"), "#x=0.3,0.8,0.05&block=39")
    x = np.array([[0.3], [0.8], [0.05]])
    network, target = built("theorem-2").network, built("theorem-2").target
    cost = built("theorem-2").cost
    said = f"{cost.blocks} blocks, {cost.parameters} parameters"
    assert said in page.inner_text("body")
    shown = {
        kind: [
            float(cell.get_attribute("data-value"))
            for cell in page.locator(f"td[data-{kind}]").all()
        ]
        for kind in "xfg"
    }
    assert shown["x"] == x[:, 0].tolist()
    assert shown["g"] == network(x)[:, 0].tolist()
    np.testing.assert_allclose(shown["f"], target(x)[:, 0], rtol=1e-14)


def test_f_of_an_untraceable_target_is_the_nearest_sample(
    tmp_path: Path, opened: Callable[..., Any]
) -> None:
    def opaque(x: np.ndarray) -> np.ndarray:
        return np.array([[float(str(v[0])) / 2] for row in x for v in row]).reshape(x.shape)

    target = ef.Target(opaque, 2, 1, lipschitz=1, name="opaque")
    assert target.expression is None
    page = opened(ef.construct(target, grid=2).explore().save(tmp_path / "page.html"))
    found = page.evaluate("everyformer.f([0.5, 1])")
    np.testing.assert_allclose(found, [0.25, 0.5], atol=1e-2)
    assert "sampled points" in page.inner_text("#tokens")
    assert "CONDITIONAL" in page.inner_text("#function")  # on the declared constant
