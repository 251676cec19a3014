"""The folded executor: what the blocks do, without doing them one by one.

A constructed network rounds (quantiser), follows a recursion on integers (contextual map)
and looks a number up in a table (value map). Folding reads the recursion and the table off
the weights, refuses a network whose weights do not have that form, and is compared with the
literal executor on a few hundred sequences when it is made.

Between plateaus the two differ: there, over a width of 2^-30 of the box, the literal
network passes from one cell's value to the next's through anything in the range of the
table; the folded one takes the value of the cell that the point lies in.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numba
import numpy as np

from everyformer.errors import NumberKindError
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.construction import Construction
from everyformer.model.execute import cpu
from everyformer.model.execute.pack import PackedLayers, pack
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.progress import Progress, no_progress

if TYPE_CHECKING:
    from everyformer.model.network import Network

CHECKED = 256
"""Sequences of each kind on which a folded network is compared with the literal one."""


BEFORE = ("position layer", "read in")
"""Stages in front of the quantiser that are run literally."""

NEEDED = ("quantise", "selective shifts", "global shift", "ids to codes", "value map")


class NotFoldableError(NumberKindError):
    """The weights do not have the form that can be folded."""


@dataclass(frozen=True)
class Folded:
    """A constructed network as numbers; call it on sequences (count, n, d).

    Attributes:
        before: The layers in front of the quantiser that are run literally.
        positions: E, or None (Theorem 2, and URPE, whose first layer makes it).
        grid: K.
        starts: First swept id of each position, in units of delta.
        columns: V = K^d.
        coefficient: C of the last attention layer.
        ids: Ids that the value map knows, increasing, in units of delta.
        values: What each becomes, shape (len(ids), d).
        high: Upper end of the unit interval, with its guard (Theorem 2); inf in Theorem 3.
        lift: What the out-of-range test adds to coordinates inside.
    """

    before: tuple[PackedLayers, ...]
    positions: np.ndarray | None
    grid: int
    starts: np.ndarray
    columns: int
    coefficient: int
    ids: np.ndarray
    values: np.ndarray
    high: float
    lift: float

    def __call__(self, x: np.ndarray, threads: int | None = None) -> np.ndarray:
        """The network's value on every sequence, shape (count, n, d)."""
        tokens = x if self.positions is None else x + self.positions
        if self.before:
            tokens = cpu.run(self.before, tokens, threads=threads)
        tokens = np.ascontiguousarray(tokens)
        result = np.zeros_like(tokens)
        cpu.in_threads(
            lambda start, stop: _fold_kernel(
                tokens[start:stop],
                result[start:stop],
                self.grid,
                self.columns,
                self.starts,
                self.coefficient,
                self.ids,
                self.values,
                self.high,
                self.lift,
            ),
            [(k, min(k + 4096, len(tokens))) for k in range(0, len(tokens), 4096)],
            threads,
        )
        return result


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fold_kernel(
    x: Any,
    out: Any,
    K: int,
    V: int,
    starts: Any,
    C: int,
    table: Any,
    values: Any,
    high: float,
    lift: float,
) -> None:
    count, n, d = x.shape
    positional = starts.shape[0] > 1
    weight = (V - 1) // (K - 1)  # 1 + K + .. + K^(d-1)
    ids = np.empty(n, np.int64)
    for s in range(count):
        inside = True
        for j in range(n):
            step = starts[j] // weight if positional else 0
            ids[j] = starts[j] if positional else 0
            power = 1
            for i in range(d):
                t = x[s, j, i]
                if not positional and (t < 0.0 or t > high):
                    inside = False
                cell = int(np.floor((t + lift) * K)) - step
                cell = min(max(cell, 0), K - 1)
                ids[j] += cell * power
                power *= K
        if not inside:
            continue
        # The sweep: the next id at or above the pointer that some layer looks for.
        pointer = np.int64(-1)
        while True:
            nearest = np.int64(-1)
            for j in range(n):
                if ids[j] > pointer and (nearest < 0 or ids[j] < nearest):
                    for p in range(starts.shape[0]):
                        if starts[p] <= ids[j] < starts[p] + V:
                            nearest = ids[j]
            if nearest < 0:
                break
            low, top = ids[0], ids[0]
            for j in range(1, n):
                low, top = min(low, ids[j]), max(top, ids[j])
            for j in range(n):
                if ids[j] == nearest:
                    ids[j] += V * (top - low)
            pointer = nearest
        top = ids[0]
        for j in range(1, n):
            top = max(top, ids[j])
        for j in range(n):
            wanted = ids[j] + C * top
            left, right = 0, table.shape[0]
            while left < right:
                middle = (left + right) // 2
                if table[middle] < wanted:
                    left = middle + 1
                else:
                    right = middle
            if left < table.shape[0] and table[left] == wanted:
                for i in range(d):
                    out[s, j, i] = values[left, i]


def fold(network: "Network", progress: Progress = no_progress) -> Folded:
    """Read the folded form off the weights, and compare it with the literal network.

    Raises:
        NotFoldableError: If the network is not of the constructed form, saying where.
    """
    spec, stages, construction = network.architecture, network.stages, network.construction
    if construction is None or construction.ids is None:
        _refuse("it does not say how it was constructed")
    if spec.normaliser != "softmax" or spec.seq_len < 2:
        _refuse("only softmax networks of two or more tokens are folded")
    if any(s.attention is not None and s.attention.mask is not None for s in stages):
        _refuse("its attention is sparse, and only the sweep over all tokens is folded")
    by_kind = {stage.kind: stage for stage in stages}
    missing = sorted(set(NEEDED) - set(by_kind))
    if missing:
        _refuse(f"it has no stage {', '.join(missing)}")
    K, u = construction.grid, np.array(construction.ids.direction, dtype=np.float64)
    starts = _sweep(by_kind["selective shifts"], K, u, construction)
    coefficient = _last(by_kind["global shift"], u, construction)
    ids, values = _table(spec, stages, u, K)
    kinds = [stage.kind for stage in stages]
    before = stages[: kinds.index("quantise")]
    before = tuple(stage for stage in before if stage.kind in BEFORE)
    looking = by_kind.get("out of range")
    outside = None if looking is None else looking.feed_forward
    folded = Folded(
        before=pack(before, spec),
        positions=network.positions,
        grid=K,
        starts=starts,
        columns=K**spec.d_model,
        coefficient=coefficient,
        ids=ids,
        values=values,
        # where the ramp above the box begins; a network with positions has no such ramp
        high=float("inf") if outside is None else float(-outside.b_1[:, 2].max()),
        # by the layer that looks at a coordinate
        lift=0.0 if outside is None else float(outside.b_2.max()),
    )
    _compare(folded, network, construction, progress)
    return folded


def _refuse(why: str) -> NoReturn:
    msg = f"This network cannot be folded: {why}. Use executor='literal'."
    raise NotFoldableError(msg)


def _require(condition: bool, stage: str, what: str) -> None:
    if not condition:
        _refuse(f"in the stage {stage!r}, {what}")


def _heads(stage: Stage, u: np.ndarray, sharpness: float) -> AttentionStack:
    stack = stage.attention
    if stack is None or stage.feed_forward is not None:
        _refuse(f"the stage {stage.name!r} is not attention alone")
    same = (
        stack.W_Q.shape[1:3] == (2, 1)
        and not stack.relative
        and (u == stack.W_Q).all()
        and (u == stack.W_V).all()
        and (sharpness * u == stack.W_K).all()
        and (stack.W_O[:, :, 1:] == 0).all()
    )
    _require(bool(same), stage.name, "the heads are not u^T with output to coordinate 1")
    return stack


def _sweep(stage: Stage, K: int, u: np.ndarray, c: Construction) -> np.ndarray:
    """First swept ids of the positions, after checking every bias and coefficient."""
    stack = _heads(stage, u, float(c.sharpness))
    V = K ** len(u)
    outputs = stack.W_O[:, :, 0, 0]
    _require(bool((outputs == [V, -V]).all()), stage.name, "the coefficients are not V, -V")
    swept = stack.b_Q[:, :, 0].sum(axis=-1) * K / 2
    half = stack.b_Q[:, 1, 0] - stack.b_Q[:, 0, 0] == 1 / K
    whole = (swept == np.round(swept)) & half
    _require(bool(whole.all()), stage.name, "the windows are not one cell wide")
    starts = swept[::V].astype(np.int64)
    expected = (starts[:, None] + np.arange(V)).reshape(-1)
    _require(
        len(expected) == len(swept) and bool((expected == swept).all()),
        stage.name,
        "the swept ids do not increase one by one",
    )
    return starts


def _last(stage: Stage, u: np.ndarray, c: Construction) -> int:
    stack = _heads(stage, u, float(c.sharpness))
    fine = stack.layers == 1 and (stack.b_Q == 0).all() and stack.W_O[0, 1, 0, 0] == 0
    _require(bool(fine), stage.name, "it is not one head with bias 0")
    return int(stack.W_O[0, 0, 0, 0])


def _windows(stage: Stage, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids and changes of layers Z += change phi(u^T Z - id), decreasing ids."""
    stack = stage.feed_forward
    if stack is None or stage.attention is not None:
        _refuse(f"the stage {stage.name!r} is not feed-forward alone")
    _require(_is_window(stack, u), stage.name, "a layer is not a window on u^T Z")
    ids = -(stack.b_1[:, 0] + stack.b_1[:, 3]) / 2
    ramp = stack.b_1[0, 0] - stack.b_1[0, 1]
    _require(bool((np.diff(ids) < 0).all()), stage.name, "the ids do not decrease")
    return ids, stack.W_2[:, :, 0] * ramp


def _is_window(stack: FeedForwardStack, u: np.ndarray) -> bool:
    if stack.phi is not None or stack.W_1.shape[1] != 4 or len(stack.b_1) == 0:
        return False
    ramp = stack.b_1[0, 0] - stack.b_1[0, 1]
    steps = stack.b_1 - stack.b_1[:, :1]
    return bool(
        (u == stack.W_1).all()
        and (steps == ramp * np.array([0, -1, -3, -4])).all()
        and (stack.W_2[:, :, :1] * np.array([1, -1, -1, 1]) == stack.W_2).all()
        and (stack.b_2 == 0).all()
    )


def _table(
    spec: ArchitectureSpec, stages: tuple[Stage, ...], u: np.ndarray, K: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ids (increasing, units of delta) and final values, through both passes."""
    kinds = [stage.kind for stage in stages]
    first, second = kinds.index("ids to codes"), kinds.index("value map")
    _require(second == first + 1, "value map", "it does not follow the codes")
    ids, to_code = _windows(stages[first], u)
    codes, to_value = _windows(stages[second], u)
    reached = ids + to_code @ u
    place = np.searchsorted(-codes, -reached)
    known = (place < len(codes)) & (codes[np.minimum(place, len(codes) - 1)] == reached)
    _require(bool(known.all()), "value map", "a code has no layer")
    held = np.zeros((len(ids), spec.d_model))
    held[:, 0] = reached
    written = held + to_value[place]
    after = cpu.run(pack(stages[second + 1 :], spec), written[:, None, :])[:, 0]
    return np.round(ids[::-1] * K).astype(np.int64), np.ascontiguousarray(after[::-1])


def _compare(
    folded: Folded, network: "Network", construction: Construction, progress: Progress
) -> None:
    """Random sequences, cell centres, and (Theorem 2) points outside the box."""
    spec, positions = network.architecture, network.positions
    rng = np.random.default_rng(0)
    low, high = np.asarray(construction.lows), np.asarray(construction.highs)
    cube = rng.random((2 * CHECKED, spec.seq_len, spec.d_model))
    K = construction.grid
    cube[:CHECKED] = (np.floor(cube[:CHECKED] * K) + 0.5) / K
    if construction.theorem == "Theorem 2":
        cube = np.concatenate([cube, 3 * cube[:64] - 1])
    x = low + (high - low) * cube
    moved = x if positions is None else x + positions
    literal = cpu.run(pack(network.stages, spec), moved, progress=progress)
    wrong = (folded(x) != literal).any(axis=(1, 2))
    if wrong.any():
        _refuse(
            f"on {int(wrong.sum())} of {len(x)} sequences it differs from the literal "
            f"network, first at {x[np.argmax(wrong)].tolist()}"
        )
