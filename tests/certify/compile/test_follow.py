"""Compiled networks are proved as they are, and not when one thing of them is changed."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.adversarial.compile_subjects import (
    attended,
    bent,
    centred,
    falling,
    ordered,
    running,
    shifted,
)
from tests.certify.compile.drafts import Draft, head_claims, unit_claims

import everyformer as ef
from everyformer.certify.compile.claims import Claimed
from everyformer.numerics.expression import Expression, Node

EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    function.__name__: function
    for function in (centred, shifted, falling, ordered, running, bent, attended)
}


@pytest.fixture(scope="module")
def drafts() -> dict[str, Draft]:
    return {name: Draft.of(ef.Target(f, 3, 2)) for name, f in EXACT.items()}


@pytest.fixture
def draft(request: pytest.FixtureRequest, drafts: dict[str, Draft]) -> Draft:
    kept = drafts[request.param]
    return replace(kept, weights=_copied(kept))


def _copied(draft: Draft) -> Any:
    return copy.deepcopy(draft.weights)


def of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("draft", names, indirect=True)


@of(*EXACT)
def test_exact_programs_are_proved_to_rounding(draft: Draft) -> None:
    assert draft.bound() < 1e-13
    assert draft.measured() <= draft.bound() + 1e-15


@of("falling", "ordered", "centred")
def test_a_second_head_that_writes_a_register_is_refused(draft: Draft) -> None:
    (b, _, claim), *_ = [
        one for step in ("gather", "mean") for one in head_claims(draft, step)
    ]
    for stage in draft.weights.stages:
        if "W_Q" in stage.arrays:
            for name, array in stage.arrays.items():
                stage.arrays[name] = np.concatenate([array, array], axis=1)
            break
    draft.claims["blocks"][b]["heads"].append(claim)
    assert "is not empty" in draft.refused()


@of("bent", "falling")
def test_a_unit_that_writes_to_an_input_is_refused(draft: Draft) -> None:
    b = next(iter(unit_claims(draft, "sum") + unit_claims(draft, "max")))[0]
    draft.array(b, "W_2")[0, 0] += 1e-3
    assert draft.refused()


@of("shifted", "ordered")
def test_another_permutation_is_not_what_the_weights_do(draft: Draft) -> None:
    _, _, claim = head_claims(draft, "gather")[0]
    claim["tau"] = claim["tau"][1:] + claim["tau"][:1]
    assert "from the claimed mixture" in draft.refused()


@of("shifted")
def test_a_gather_that_hears_another_token_is_not_f(draft: Draft) -> None:
    """Weights and claim agree; the function is another one."""
    b, h, claim = head_claims(draft, "gather")[0]
    used = np.flatnonzero(draft.array(b, "W_K")[h].any(axis=0))
    claim["tau"] = [0, 0, 0]
    for k in np.flatnonzero(draft.array(b, "W_Q")[h].any(axis=0)):
        if k not in used and draft.held.start[:, k].any():
            draft.held.start[:, k] = 0
    assert draft.refused()


@of("ordered")
def test_a_gate_that_is_open_on_one_more_token_is_refused(draft: Draft) -> None:
    _, claim = unit_claims(draft, "exchange")[0]
    low = claim["gates"][0]
    for value in (0.0, 1e-3, -8.0):
        kept = draft.held.start[:, low].copy()
        closed = int(np.flatnonzero(kept)[0])
        draft.held.start[closed, low] = value
        assert draft.refused()
        draft.held.start[:, low] = kept
    assert not draft.refused()


@of("ordered")
def test_a_clear_that_is_not_one_is_refused(draft: Draft) -> None:
    cleared = unit_claims(draft, "clear")
    assert cleared
    b, claim = cleared[0]
    draft.array(b, "W_2")[claim["register"], claim["units"][0]] = -1 + 2**-40
    assert "not a clear" in draft.refused()


@of("falling")
def test_a_maximum_that_is_not_one_is_refused(draft: Draft) -> None:
    b, claim = unit_claims(draft, "max")[0]
    draft.array(b, "W_2")[claim["register"], claim["units"][0]] = 1 - 2**-30
    assert "not a maximum" in draft.refused()
    claim["step"] = "min"
    assert draft.refused()


@of("running")
def test_rationals_that_weights_do_not_hold_cost_what_they_are_off(draft: Draft) -> None:
    exact = draft.bound()
    i, k = (int(v) for v in np.argwhere(draft.held.W_out)[0])
    kept = draft.held.W_out[i, k]
    draft.held.W_out[i, k] = kept * (1 + 1e-6)
    assert "is not f" in draft.refused()
    draft.claims["coefficients"].setdefault("W_out", []).append([i, k, str(kept.item())])
    assert "cannot be read" in draft.refused()
    draft.claims["coefficients"]["W_out"][-1][2] = "/".join(
        str(v) for v in float(kept).as_integer_ratio()
    )
    assert draft.bound() > exact + 1e-7
    assert draft.measured() <= draft.bound()


@of("attended", "running", "bent")
def test_another_function_is_not_proved(draft: Draft) -> None:
    nodes = list(draft.f.nodes)
    k = next(k for k, node in enumerate(nodes) if node.op in {"add", "sub"})
    nodes[k] = Node("sub" if nodes[k].op == "add" else "add", nodes[k].args)
    other = replace(draft.f, nodes=tuple(nodes))
    assert "is not f" in draft.refused(other)
    rows = (draft.f.outputs[1], draft.f.outputs[0], *draft.f.outputs[2:])
    assert "is not f" in draft.refused(replace(draft.f, outputs=rows))


@of("attended")
def test_another_program_of_the_same_size_is_refused(draft: Draft) -> None:
    def other(x: np.ndarray) -> np.ndarray:
        weights = np.exp(2 * x @ np.swapaxes(x, -1, -2))
        return weights / weights.sum(axis=-1, keepdims=True) @ x

    expression = ef.Target(other, 3, 2).expression
    assert expression is not None
    assert "is not f" in draft.refused(expression)


@of("centred", "ordered", "bent")
def test_b_2_is_refused(draft: Draft) -> None:
    for stage in draft.weights.stages:
        if "b_2" in stage.arrays:
            stage.arrays["b_2"][0, 0] = 1e-9
            assert "b_2" in draft.refused()
            return
    assert "b_2" not in {name for stage in draft.weights.stages for name in stage.arrays}


@of("centred")
def test_a_read_in_that_scales_is_refused(draft: Draft) -> None:
    draft.held.W_in[int(np.flatnonzero(draft.held.W_in[:, 0])[0]), 0] = 1.5
    assert "neither an entry of x nor a constant" in draft.refused()


MALFORMED: list[Any] = [
    None, 3, [], {}, {"blocks": []}, {"blocks": {}, "macros": [], "coefficients": {}},
    {"blocks": [{}], "macros": [], "coefficients": {}},
    {"blocks": [{"heads": [], "units": []}] * 9, "macros": [], "coefficients": {}},
]  # fmt: skip


@of("ordered")
@pytest.mark.parametrize("values", MALFORMED)
def test_programs_that_cannot_be_read_are_refused(draft: Draft, values: Any) -> None:
    draft.weights = replace(draft.weights, program=values)
    assert draft.refused()


def _paths(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys: list[Any] = []
    if isinstance(values, dict):
        keys = list(values)
    elif isinstance(values, list):
        keys = list(range(len(values)))
    below = [_paths(values[key], (*path, key)) for key in keys]
    return [(*path, key) for key in keys] + [one for more in below for one in more]


ODD: list[Any] = [None, -1, 10**9, 1.5, "", "1/0", "x", "9" * 3000, [], {}, [[]], True]


@of("ordered", "running", "attended")
def test_a_changed_program_is_never_a_crash_and_never_false(draft: Draft) -> None:
    """Every value of the claims replaced by odd ones: refused, or still true."""
    rng = np.random.default_rng(0)
    paths = _paths(draft.claims)
    for place in rng.permutation(len(paths))[:150]:
        claims = copy.deepcopy(draft.claims)
        at = claims
        *path, last = paths[place]
        for key in path:
            at = at[key]
        at[last] = ODD[int(rng.integers(0, len(ODD)))]
        changed = replace(draft, weights=replace(draft.weights, program=claims))
        proof = changed.prove()
        bound = np.inf if proof.float64 is None else float(proof.float64.value)
        assert draft.measured(50) <= bound + 1e-15


def test_what_may_not_be_defined_is_not_proved() -> None:
    draft = Draft.of(ef.Target(lambda x: x + 0.5, 2, 1))
    half = next(node for node in draft.f.nodes if node.op == "const")
    nodes = (
        Node("x", (0, 0)), Node("x", (1, 0)), half,
        Node("mul", (0, 0)), Node("div", (3, 0)), Node("add", (4, 2)), Node("add", (1, 2)),
    )  # fmt: skip
    undefined = Expression(2, 1, nodes, ((5,), (6,)))
    assert "may not be defined" in draft.refused(undefined)


def test_work_counts_columns_that_claim_something() -> None:
    """Columns that pad a head of several components cost nothing."""
    heads = [{"columns": [{"fn": "tanh"}, None, None]}, {"columns": None}, 7]
    blocks = [{"heads": heads}, [], {"heads": [{}]}]
    assert Claimed.of({"blocks": blocks}).columns == 1
