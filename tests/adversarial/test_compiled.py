"""Compiled networks under attack: tampered ones, and those that were built to deceive.

Each attack names what a careless verifier would overlook. Where a proof goes through, its
bounds hold for all runs that were tried and for real arithmetic; else it is refused.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adversarial import compile_attack
from tests.adversarial.compile_attack import run_case, smaller
from tests.adversarial.compile_measuring import measure
from tests.adversarial.compile_subjects import SUBJECTS, build, write_subjects
from tests.adversarial.hand_compiled import Hand, Head, Unit
from tests.adversarial.remembered import Remembered
from tests.adversarial.tampering import Draft as Folder
from tests.certify.compile.drafts import Draft, head_claims, own, unit_claims

import everyformer as ef
from everyformer.certify.compile.claims import read_claims
from everyformer.certify.undecided import Undecided
from everyformer.construct.certificates import as_stored
from everyformer.errors import WorkLimitError
from everyformer.numerics.expression import Node

CASES, PARTS = 10 * len(SUBJECTS), 8
"""As many as show a lie, below; `make attack` runs 300 of them."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_subjects(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def verdicts() -> Remembered:
    return Remembered(compile_attack.measure)


@pytest.fixture
def remembered(verdicts: Remembered, monkeypatch: pytest.MonkeyPatch) -> Remembered:
    monkeypatch.setattr(compile_attack.ef, "verify", verdicts.verify)
    monkeypatch.setattr(compile_attack, "measure", verdicts.measure)
    return verdicts


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("part", range(PARTS))
def test_tampered_compiled_networks(part: int, folders: dict[str, Path]) -> None:
    outcomes = [run_case(number, 0, folders) for number in range(part, CASES, PARTS)]
    assert not [one for one in outcomes if one.wrong]
    assert {one.said for one in outcomes} >= {"PROVED", "UNKNOWN"}


def test_a_verifier_whose_bounds_are_too_small_is_caught(
    folders: dict[str, Path], remembered: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying = remembered.lying(lambda found: smaller(found, 100))
    monkeypatch.setattr(compile_attack.ef, "verify", lying)
    outcomes = [run_case(number, 0, folders) for number in range(CASES)]
    caught = {one.subject for one in outcomes if one.wrong == "false PROVED"}
    assert len(caught) > len(SUBJECTS) // 2


def drafted(name: str) -> Draft:
    function, n, d, _ = SUBJECTS[name]
    target = ef.Target(function, n, d)
    assert target.expression is not None
    network = build(name).network
    return Draft(target, network, own(as_stored(network)), target.expression)


@pytest.fixture(scope="module")
def kept() -> dict[str, Draft]:
    return {}


@pytest.fixture
def draft(request: pytest.FixtureRequest, kept: dict[str, Draft]) -> Draft:
    """The subject that a test is marked with, in arrays of its own."""
    name = request.param
    if name not in kept:
        kept[name] = drafted(name)
    return replace(kept[name], weights=copy.deepcopy(kept[name].weights))


def of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("draft", names, indirect=True)


def is_honest(draft: Draft, seed: int = 0) -> bool:
    """Whether the proof is refused, or holds for every run that was tried."""
    proof = draft.prove()
    if proof.real is None or proof.float64 is None:
        return True
    rng = np.random.default_rng(seed)
    found = measure(draft.f, draft.target.domain, draft.run(), rng)
    return found.real <= float(proof.real.value) and found.run <= float(proof.float64.value)


@of(*SUBJECTS)
def test_bounds_hold_for_rough_runs_and_in_real_arithmetic(draft: Draft) -> None:
    assert not draft.refused()
    assert is_honest(draft)


SQUARE = {"fn": "pow", "power": "2", "inner": ["1", "0"]}
KEYS, QUIET = (5, 6), -8192.0
"""Registers of a and b; b of data tokens."""


def knots(rho: float, beyond: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a, b and v of a head that computes t^2 on [-1, 1], roughly."""
    tau = -1 + np.arange(-beyond, 3.0 + beyond)
    return tau / rho**2, -(tau**2) / (2 * rho**2), tau**2 - rho**2


def prefix_of(width: int, **columns: np.ndarray) -> np.ndarray:
    found = np.zeros((len(next(iter(columns.values()))), width))
    for name, column in columns.items():
        found[:, int(name[1:])] = column
    return found


def square(
    to: int, t: dict[int, float], v: int = 7, factor: float = 1.0, column: Any = SQUARE
) -> Head:
    a, b = KEYS
    return Head(
        {"step": "unary", "columns": [column, None]},
        [(t, 0.0), ({}, 1.0)], [{a: 1.0}, {b: 1.0}], [{v: 1.0}], [(to, factor)],
    )  # fmt: skip


def product(block: int, plus: int, minus: int) -> dict[str, Any]:
    return {"step": "product", "block": block, "registers": [plus, minus], "balance": "1"}


def cubes(off: float) -> Hand:
    """x^3 = x^2 x from two registers that both stand for x^2, with opposite errors."""
    a, b, v = knots(0.6, 3)
    wrong = off * np.where(np.arange(len(a)) % 2, 1, -1)
    hand = Hand(lambda x: x**3, 2, 1, 12, {6: QUIET})
    hand.prefix = prefix_of(12, r5=a, r6=b, r7=v + wrong, r8=v - wrong)
    hand.block([square(1, {0: 1.0}), square(2, {0: 1.0}, v=8)])
    hand.block([square(3, {1: 0.5, 0: 0.5}, 7, 4.0), square(4, {2: 0.5, 0: -0.5}, 7, 4.0)])
    hand.macros = [product(1, 3, 4)]
    hand.out = [{3: 0.25, 4: -0.25}]
    return hand


def test_two_registers_of_one_term_in_a_product_count_with_both_errors() -> None:
    hand = cubes(0.05)
    assert hand.bounds()[0] > 0.05
    assert hand.is_honest()


def test_a_product_of_two_blocks_is_refused() -> None:
    hand = cubes(0.0)
    hand.macros = [product(0, 3, 4)]
    assert "not squares" in hand.refused()


def test_a_product_is_forgotten_after_one_register_is_cleared() -> None:
    """Register 4 is cleared and filled with something else: x^2 in place of (x^2 - x)^2."""
    hand = cubes(0.0)
    clear = [Unit({4: 1.0}, 0.0, 4, -1.0), Unit({4: -1.0}, 0.0, 4, 1.0)]
    claim = {"step": "clear", "register": 4, "units": [0, 1]}
    hand.block([], clear, [claim])
    assert "is not f" in hand.refused()
    hand.block([square(4, {0: 1.0})])
    assert "is not f" in hand.refused()


def test_the_result_of_a_cleared_register_is_zero() -> None:
    hand = Hand(lambda x: x, 2, 1, 1)
    clear = [Unit({0: 1.0}, 0.0, 0, -1.0), Unit({0: -1.0}, 0.0, 0, 1.0)]
    hand.block([], clear, [{"step": "clear", "register": 0, "units": [0, 1]}])
    hand.out = [{0: 1.0}]
    assert "is not f" in hand.refused()
    hand.target = lambda x: 0 * x
    assert hand.bounds() == (0.0, 0.0)
    assert hand.is_honest()


def test_the_root_of_a_square_is_not_the_number() -> None:
    """sqrt(x^2) is |x|: on [-1, 1] far from x."""
    hand = Hand(lambda x: np.sqrt(x * x), 2, 1, 2, domain=(-1.0, 1.0))
    hand.block([], [Unit({0: 1.0}, 0.0, 1, 1.0), Unit({0: -1.0}, 0.0, 1, -1.0)],
               [{"step": "sum", "register": 1,
                 "terms": [{"as": "copy", "units": [0, 1], "gate": None}]}])  # fmt: skip
    hand.out = [{1: 1.0}]
    assert "is not f" in hand.refused()
    hand.target = lambda x: x
    assert hand.is_honest()
    assert not hand.refused()


def gated(prefix_gate: float, garbage: float) -> Hand:
    """Register 1 is copied behind a gate, then summed over tokens with a silent null."""
    hand = Hand(lambda x: x.cumsum(-2) / 2, 2, 1, 8)
    hand.start = {3: [1.0, 0.0], 4: [0.0, 1.0]}
    hand.prefix = np.zeros((1, 8))
    hand.prefix[0, [0, 2, 5]] = garbage, prefix_gate, 1.0
    terms = [{"as": "copy", "units": [0, 1], "gate": 2}]
    copies = [Unit({0: c, 2: -1.0}, 0.0, 1, c) for c in (1.0, -1.0)]
    hand.block([], copies, [{"step": "sum", "register": 1, "terms": terms}])
    log = float(np.log(0.5))
    queries = [
        ({3: log, 4: log}, 0.0),
        ({3: QUIET, 4: log}, 0.0),
        ({3: log, 4: QUIET}, 0.0),
    ]
    hand.block([Head({"step": "mix", "matrix": [["1/2", "0"], ["1/2", "1/2"]]}, queries,
                     [{3: 1.0}, {4: 1.0}, {5: 1.0}], [{1: 1.0}], [(6, 1.0)])])  # fmt: skip
    hand.out = [{6: 1.0}]
    return hand


def test_a_null_token_is_heard_only_if_it_says_nothing() -> None:
    assert not gated(64.0, 7.0).refused()
    assert gated(64.0, 7.0).is_honest()


@pytest.mark.parametrize("gate", [0.0, 1.0, 13.0, 14.0, -64.0])
def test_a_gate_that_is_open_on_garbage_is_refused(gate: float) -> None:
    assert "prefix tokens are heard" in gated(gate, 7.0).refused()


def scored(large: float, claimed: list[int]) -> Hand:
    """A gather by scores that are differences of large numbers."""
    hand = Hand(lambda x: x[..., claimed, :], 2, 1, 5)
    hand.start = {1: [1.0, 1.0], 2: [1.0, 1.0], 3: [0.0, 1024.0]}
    queries = [({1: large}, 0.0), ({1: -large}, 0.0), ({1: 1.0}, 0.0)]
    head = {"step": "gather", "tau": claimed}
    hand.block(
        [Head(head, queries, [{2: 1.0}, {2: 1.0}, {3: 1.0}], [{0: 1.0}], [(4, 1.0)])]
    )
    hand.out = [{4: 1.0}]
    return hand


def test_large_scores_that_cancel_are_not_believed() -> None:
    """1e30 - 1e30 + 1024: float64 may say 0, and then both tokens are heard alike."""
    assert not scored(1.0, [1, 1]).refused()
    assert scored(1.0, [1, 1]).is_honest()
    assert scored(2.0**52, [1, 1]).is_honest()
    for large in (2.0**60, 1e30, 2.0**199):
        assert scored(large, [1, 1]).refused()


def shouted_down(gap: float, live: float) -> Hand:
    """Attention in which token 2 is `gap` below token 1, but for x_j x_k up to `live`."""
    hand = Hand(lambda x: x[..., [0, 0], :], 2, 1, 4)
    hand.start = {1: [1.0, 1.0], 2: [0.0, -gap]}
    queries = [({0: live}, 0.0), ({1: 1.0}, 0.0)]
    keys = [{0: 1.0}, {2: 1.0}]
    hand.block([Head({"step": "attend"}, queries, keys, [{0: 1.0}], [(3, 1.0)])])
    hand.out = [{3: 1.0}]
    return hand


@pytest.mark.parametrize("live", [0.0, 1.0, 400.0, 1e6, 1e15])
def test_a_token_is_silent_only_if_no_input_makes_it_heard(live: float) -> None:
    assert shouted_down(live + 1.0, live).refused()
    assert shouted_down(700.0 + live, live).refused()
    loud = shouted_down(3 * live + 900.0, live)
    assert not loud.refused()
    assert loud.is_honest()


def cancelling(large: float, silent: float = 0.0) -> Hand:
    """Attention by x_j x_k + large - large, and a third token far below."""
    hand = Hand(_of_two_tokens, 3, 1, 5)
    hand.start = {1: [1.0, 1.0, 1.0], 2: [1.0, 1.0, 0.0], 3: [0.0, 0.0, -silent]}
    queries = [({0: 1.0}, 0.0), ({1: large}, 0.0), ({1: -large}, 0.0), ({1: 1.0}, 0.0)]
    keys = [{0: 1.0}, {2: 1.0}, {2: 1.0}, {3: 1.0}]
    hand.block([Head({"step": "attend"}, queries, keys, [{0: 1.0}], [(4, 1.0)])])
    hand.out = [{4: 1.0}]
    return hand


def _of_two_tokens(x: np.ndarray) -> np.ndarray:
    w = np.exp(x @ np.swapaxes(x[..., :2, :], -1, -2))
    return (w / w.sum(axis=-1, keepdims=True)) @ x[..., :2, :]


def test_what_constants_of_heard_tokens_round_is_counted() -> None:
    """x + 2^40 - 2^40 loses what a sum of constants, 0, does not show."""
    for large in (0.0, 1.0, 2.0**30, 2.0**40):
        hand = cancelling(large, 2.0**60 if large > 1 else 2.0**13)
        assert not hand.refused()
        assert hand.is_honest()
        assert hand.bounds()[1] > large * 2.0**-50
    assert cancelling(2.0**40, 2.0**60).measured().run > 1e-6  # the bound is needed
    assert cancelling(1.0, 2.0**13).bounds()[1] < 1e-13  # silent tokens do not count
    assert cancelling(1.0, 700.0).refused()


def test_in_place_steps_of_one_slot_do_not_hear_each_other() -> None:
    """r1 = max(r1, r0) and r0 = min(r0, r1) at once: a sorted pair, by the old values."""
    hand = Hand(lambda x: np.stack([x.min(-1), x.max(-1)], -1), 1, 2, 2)
    units = [
        Unit({0: 1.0, 1: -1.0}, 0.0, to, factor) for to, factor in ((1, 1.0), (0, -1.0))
    ]
    larger = {"step": "max", "register": 1, "units": [0]}
    hand.block([], units, [larger, {"step": "min", "register": 0, "units": [1]}])
    hand.out = [{0: 1.0}, {1: 1.0}]
    assert not hand.refused()
    assert hand.is_honest()
    hand.target = lambda x: np.stack([x.min(-1), np.maximum(x.min(-1), x[..., 1])], -1)
    assert "is not f" in hand.refused()


def test_copies_of_sums_that_cancel_cost_their_rounding() -> None:
    """(2^40 x + x') - 2^40 x: the two units of a copy may add in different orders."""
    hand = Hand(lambda x: x[..., ::-1, :] * 0 + x, 2, 1, 4, domain=(-1.0, 1.0))
    big = 2.0**40
    form = {0: big + 1.0, 1: -big}
    back = {k: -c for k, c in form.items()}
    copies = [Unit({0: 1.0}, 0.0, 1, 1.0), Unit({0: -1.0}, 0.0, 1, -1.0)]
    said = {"step": "sum", "register": 1,
            "terms": [{"as": "copy", "units": [0, 1], "gate": None}]}  # fmt: skip
    hand.block([], copies, [said])
    hand.block([], [Unit(form, 0.0, 2, 1.0), Unit(back, 0.0, 2, -1.0)],
               [said | {"register": 2}])  # fmt: skip
    hand.out = [{2: 1.0}]
    real, run = hand.bounds()
    assert real == pytest.approx(0, abs=1e-100)
    assert run > 1e-5
    assert all(hand.measured(seed).run <= run for seed in range(3))


def other_sign(draft: Draft) -> Draft:
    nodes = list(draft.f.nodes)
    k = max(k for k, node in enumerate(nodes) if node.op in {"add", "sub"})
    nodes[k] = Node("sub" if nodes[k].op == "add" else "add", nodes[k].args)
    return replace(draft, f=replace(draft.f, nodes=tuple(nodes)))


@of("cumsum / 4", "x1 x2", "tanh MLP", "normalise", "exp log")
def test_f_with_one_sign_changed_is_refused(draft: Draft) -> None:
    assert (
        "target" in other_sign(draft).refused() or "is not f" in other_sign(draft).refused()
    )


def with_prefix(draft: Draft, rows: np.ndarray) -> Draft:
    registers = replace(draft.held, prefix=rows)
    spec = replace(draft.network.architecture, num_prefix=len(rows))
    held = replace(draft.network.registers, prefix=rows)  # pyright: ignore[reportArgumentType,reportCallIssue]
    network = replace(draft.network, architecture=spec, registers=held)
    return replace(
        draft, network=network, weights=replace(draft.weights, registers=registers)
    )


@of("mean", "max - x", "cumsum / 4", "x1 x2", "soft attention", "tanh MLP", "sin, cos")
def test_a_prefix_token_that_was_appended_is_noticed(draft: Draft) -> None:
    prefix = draft.held.prefix
    width = len(draft.held.W_in)
    before = np.zeros((0, width)) if prefix is None else prefix
    for row in (np.zeros(width), np.ones(width), np.full(width, -3.0)):
        assert is_honest(with_prefix(draft, np.concatenate([before, row[None]])))
    heard = np.zeros(width)
    assert prefix is not None or with_prefix(draft, heard[None]).refused()


@of("soft attention", "x / (1 + mean x^2)", "sin, cos", "tanh MLP")
def test_isprefix_0_on_one_prefix_token_is_refused(draft: Draft) -> None:
    prefix = draft.held.prefix
    assert prefix is not None
    marks = [k for k in range(prefix.shape[1]) if (prefix[:, k] == 1).all()]
    marks = [k for k in marks if not draft.held.start[:, k].any()]
    assert marks
    for k in marks:
        prefix[0, k] = 0.0
    assert "heard" in draft.refused() or "from the claimed mixture" in draft.refused()


@of("x1 x2", "exp log", "sin, cos", "tanh MLP", "normalise")
def test_a_head_is_proved_where_its_argument_lies_and_not_where_it_was_fitted(
    draft: Draft,
) -> None:
    """The domain grows; the knots stay."""
    for low, high in ((0.0, 1.0 + 2.0**-20), (0.0, 1.5), (-0.25, 1.0)):
        wide = ef.Target(draft.target, draft.target.seq_len, draft.target.d_model,
                         domain=[(low, high)])  # fmt: skip
        network = replace(draft.network, program=None)
        changed = replace(draft, target=wide, network=network)
        assert is_honest(changed)


@of("x1 x2", "exp log", "sin, cos", "normalise")
def test_swapped_knots_and_scaled_values_cost_what_they_change(draft: Draft) -> None:
    before = draft.bound()
    prefix = draft.held.prefix
    assert prefix is not None
    values = {
        int(np.flatnonzero(draft.array(b, "W_V")[h][0])[0])
        for b, h, _ in head_claims(draft, "unary")
    }
    for k in sorted(values)[:2]:
        kept = prefix[:, k].copy()
        prefix[:, k] = kept * (1 + 1e-5)
        assert is_honest(draft)
        assert draft.refused() or draft.bound() > before or draft.bound() > 1e-6
        prefix[[0, 1], k] = kept[[1, 0]]
        assert is_honest(draft)
        prefix[:, k] = kept
    assert draft.bound() == before


@of("normalise")
def test_a_foreign_factor_in_normalised_values_is_refused(draft: Draft) -> None:
    groups = [one for one in draft.claims["macros"] if one["step"] == "normalise"]
    assert groups
    (group,) = groups
    block = group["products"][0][0]
    W_Q = draft.array(block, "W_Q")
    used = sorted(int(k) for k in np.flatnonzero(W_Q.any(axis=(0, 1))))
    for head in range(2):
        kept = W_Q[head].copy()
        for k in used[::2]:
            W_Q[head, 0, k] += 0.5
            assert draft.refused()
            W_Q[head] = kept
    for change in (
        {"delta": "1/127"},
        {"squares": group["squares"][:1]},
        {"squares": group["squares"][::-1], "root": group["squares"][0]},
    ):
        saved = dict(group)
        group.update(change)
        assert draft.refused()
        group.clear()
        group.update(saved)
    assert not draft.refused()


@of("abs, relu, gates")
def test_gates_that_barely_close_hold(draft: Draft) -> None:
    """Gates are lowered until they are refused; as long as they are not, bounds hold."""
    gates = {t["gate"] for _, c in unit_claims(draft, "sum") for t in c["terms"]} - {None}
    assert gates
    for gate in gates:
        start = draft.held.start[:, gate].copy()
        refusals = 0
        for share in (1.0, 0.5, 0.25, 0.125, 0.01, 1e-6):
            draft.held.start[:, gate] = start * share
            assert is_honest(draft)
            refusals += bool(draft.refused())
        assert refusals
        draft.held.start[:, gate] = start


def test_two_products_of_one_register_are_refused() -> None:
    """Reading many of them took time quadratic in their number."""
    claims = {"blocks": [{"heads": [], "units": []}], "coefficients": {}}
    with pytest.raises(Undecided, match="two products"):
        read_claims(claims | {"macros": [product(0, 0, 1)] * 2}, 2, 4)
    group = {"step": "normalise", "squares": [[0, 0]], "root": [0, 1],
             "products": [[0, 2, 3]], "delta": "1"}  # fmt: skip
    with pytest.raises(Undecided, match="two groups"):
        read_claims(claims | {"macros": [group, group]}, 2, 4)


def test_many_functions_of_one_number_are_counted_as_work(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """Each column is a proof of up to a second: a small file must not take hours."""
    draft = Folder.read(folders["sin, cos"])
    claims = draft.description["program"]["claims"]
    head = claims["blocks"][0]["heads"][0]
    head["columns"] += [head["columns"][0]] * 10_000
    draft.write(tmp_path)
    with pytest.raises(WorkLimitError, match="blocks"):
        ef.verify(tmp_path)
