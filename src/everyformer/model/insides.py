"""The insides of a compiled network at one input: every step with its value.

A network runs as it is; its ideal program runs beside it: the same, with the function that
it stands for in place of each head that approximates one. What is shown is what the network
says of itself; `everyformer inspect` asks the verifier for the errors.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from everyformer.model.compiled import ProgramStep
from everyformer.model.forward import feed_forward_layer, head_update
from everyformer.model.stacks import AttentionStack

if TYPE_CHECKING:
    from everyformer.model.network import Network, StageState

HEADINGS = (
    "block", "what", "your line", "interval", "e", "r", "value", "ideal", "off, measured",
)  # fmt: skip

LONGEST = 200
"""Characters of a word in a table: every row is as wide as the widest."""

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Inside:
    """One step of a program at one input.

    Attributes:
        step: What it is, with what is said of its interval and its error.
        value: What the network has there, shape (*batch, n).
        ideal: What the program has there, to float64; nan where it is not known.
    """

    step: ProgramStep
    value: np.ndarray
    ideal: np.ndarray

    def row(self) -> tuple[str, ...]:
        """For a table; value and ideal are those of the token that is farthest off."""
        step, half = self.step, "ff" if self.step.slot % 2 else "attn"
        off = np.abs(self.value - self.ideal)
        worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
        known = step.low <= step.high
        return (
            f"{step.slot // 2} {half}",
            step.what,
            step.line,
            f"[{step.low:.6g}, {step.high:.6g}]" if known else "",
            f"{step.e:.1e}" if known else "",
            f"{step.r:.1e}" if known else "",
            f"{self.value.flat[worst]:.9g}",
            f"{self.ideal.flat[worst]:.9g}",
            f"{off.flat[worst]:.1e}",
        )


class Trace(tuple["StageState", ...]):
    """The state after every stage; of a compiled network also every step of its program.

    Attributes:
        insides: Those steps.
    """

    insides: tuple[Inside, ...]

    def __new__(
        cls, steps: Iterable["StageState"], insides: tuple[Inside, ...] = ()
    ) -> "Trace":
        """A tuple of steps that carries the insides with it."""
        made = super().__new__(cls, steps)
        made.insides = insides
        return made

    def __str__(self) -> str:
        """A table of the program's steps, if there is one."""
        if not self.insides:
            return super().__str__()
        return table_of(self.insides)


def table_of(insides: Iterable[Inside]) -> str:
    """A row for each step; value and ideal at the token that is farthest off.

    Words of a file are cut short.
    """
    found = [HEADINGS, *(inside.row() for inside in insides)]
    rows = [[_cut(text) for text in row] for row in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{text:<{w}}" for text, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def insides(network: "Network", state: np.ndarray) -> tuple[Inside, ...]:
    """Every step of a network's program, from the registers that are read in."""
    said = network.program
    if said is None or not said.steps:
        return ()
    P = network.architecture.num_prefix
    run = [s[..., P:, :] for s in _states(network, state, None)]
    try:
        ideal = [s[..., P:, :] for s in _states(network, state, said.claims["blocks"])]
    except MALFORMED:  # claims are anybody's: nothing is known of the ideal then
        ideal = [np.full_like(s, np.nan) for s in run]
    return tuple(
        Inside(step, _read(step, run), _read(step, ideal))
        for step in said.steps
        if step.slot + 1 < len(run) and all(r < run[0].shape[-1] for r, _ in step.reads)
    )


def _read(step: ProgramStep, states: list[np.ndarray]) -> np.ndarray:
    after = states[step.slot + 1]
    return sum((c * after[..., r] for r, c in step.reads), np.zeros(after.shape[:-1]))


def _states(network: "Network", state: np.ndarray, blocks: Any) -> list[np.ndarray]:
    """The state before the first slot and after each; ideal, where claims are given."""
    found = [state]
    for number, stage in enumerate(network.stages):
        heads = None if blocks is None else blocks[number]["heads"]
        if stage.attention is not None:
            state = state + sum(_updates(stage.attention, state, heads), 0.0)
        found.append(state)
        if stage.feed_forward is not None:
            state = feed_forward_layer(stage.feed_forward, 0, state)
        found.append(state)
    return found


def _updates(stack: AttentionStack, x: np.ndarray, claims: Any) -> Iterator[np.ndarray]:
    """What each head adds; a claimed function of one number as that function."""
    for head in range(stack.W_Q.shape[1]):
        claim = None if claims is None else claims[head]
        if claim is None or claim["step"] != "unary":
            yield head_update(stack, 0, head, x, "softmax")
            continue
        live = [c for c, row in enumerate(stack.W_Q[0, head]) if row.any()] or [0]
        t = x @ stack.W_Q[0, head, live[0]] - stack.b_Q[0, head, live[0]]
        update = np.zeros_like(x)
        for component, column in enumerate(claim["columns"]):
            if column is not None:
                value = _applied(column, t)
                update = update + value[..., None] * stack.W_O[0, head, :, component]
        yield update


def _applied(column: Any, t: np.ndarray) -> np.ndarray:
    """fn(inner_0 t + inner_1)."""
    scale, shift = (float(Fraction(c)) for c in column["inner"])
    t, name = scale * t + shift, column["fn"]
    functions = {
        "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        if name == "pow":
            return np.power(t, float(Fraction(column["power"])))
        if name == "logistic":
            return 1 / (1 + np.exp(-t))
        return functions[name](t)


def with_errors(
    found: Iterable[Inside], errors: Iterable[tuple[float, float, float, float]]
) -> list[Inside]:
    """The same, with intervals and errors (low, high, e, r) in place of those said."""
    return [
        replace(one, step=replace(one.step, low=low, high=high, e=e, r=r))
        for one, (low, high, e, r) in zip(found, errors, strict=True)
    ]
