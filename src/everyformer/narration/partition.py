"""A softmax partition of unity, told (docs/constructions/partition.md)."""

import numpy as np

from everyformer.model.forward import softmax
from everyformer.narration.chapter import Scene, Teller, Told
from everyformer.narration.numbers import agree, vector

SHOWN_ANCHORS = 4


def registers(scene: Scene, state: np.ndarray) -> dict[str, np.ndarray]:
    """The registers of tokens by name, as the construction has them."""
    n, d = scene.x.shape
    N = n * d
    sizes = {"x": d, "pos": n, "slot": N, "z": N, "key": N, "nrm": 1, "F": N}
    assert sum(sizes.values()) == state.shape[-1], "other registers"  # noqa: S101
    ends = np.cumsum(list(sizes.values()))[:-1]
    return dict(zip(sizes, np.split(state, ends, axis=-1), strict=True))


def slots(scene: Scene) -> Told:
    """slot_k = ReLU(x_i + pos_j - 1)."""
    claim = (
        "Every token writes its coordinates into slots of its own, and 0 into those of the "
        "others: slot = ReLU(x + pos - 1)."
    )
    slot = registers(scene, scene.new)["slot"]
    shown = tuple(f"slots {vector(one)}" for one in slot)
    lines = tuple(f"token {j + 1}: {text}" for j, text in enumerate(shown))
    return Told(claim, lines, values=shown)


def slot_sum(scene: Scene) -> Told:
    """z = (n + P) mean of the slots."""
    prefix = scene.network.architecture.num_prefix
    claim = (
        "Attention with all scores 0 is a plain mean of the slots; times the number of "
        f"tokens, {scene.n} and {prefix} prefix tokens, it is their sum: now every token "
        "knows all of x."
    )
    z = registers(scene, scene.new)["z"]
    told = f"every token: z = {vector(z[0])}"
    if not agree(z, np.broadcast_to(scene.unit.reshape(-1), z.shape)):
        told += f", but x is {vector(scene.unit.reshape(-1))} in units of the box"
    return Told(claim, (told,), values=tuple(f"z = {vector(one)}" for one in z))


def average(scene: Scene) -> Told:
    """G = sum_v f(v) softmax(..), and token j keeps its own entries."""
    stack, d = scene.stage.attention, scene.x.shape[-1]
    assert stack is not None, "no attention"  # noqa: S101
    assert scene.stage.feed_forward is not None, "nothing selects"  # noqa: S101
    P = scene.network.architecture.num_prefix
    before, after = registers(scene, scene.before), registers(scene, scene.new)
    query = scene.old[0] @ stack.W_Q[0, 0].T - stack.b_Q[0, 0]
    weights = softmax(scene.before @ stack.W_K[0, 0].T @ query)
    claim = (
        f"{P} prefix tokens are anchors v with the values f(v). Softmax gives an anchor "
        "the weight e^(-beta |z - v|^2), divided by the sum of all: near anchors count, "
        "far ones hardly. The mean of their values is g; every token keeps its own entries."
    )
    order = np.argsort(-weights[:P], kind="stable")
    lines = [
        f"anchor {vector(before['key'][v])}: weight {weights[v]:.4f}, "
        f"value {vector(before['F'][v])}"
        for v in order[:SHOWN_ANCHORS]
    ]
    rest = float(weights[order[SHOWN_ANCHORS:]].sum())
    if P > SHOWN_ANCHORS:
        lines.append(f"{P - SHOWN_ANCHORS:,} other anchors: weight {rest:.4f} together")
    mean = weights[:P] @ before["F"][:P]
    G = after["F"][0]
    sums = f"the mean of all values: {vector(G)}"
    if not agree(mean, G):
        sums += f", but the weights give {vector(mean)}"
    own = [G[j * d : (j + 1) * d] for j in range(scene.n)]
    kept = [f"token {j + 1} keeps {vector(entry)}" for j, entry in enumerate(own)]
    return Told(claim, (*lines, sums, *kept), values=tuple(map(vector, own)))


NARRATORS = {"slots": slots, "sum": slot_sum, "average and select": average}

TELLER = Teller("Partition", "a softmax partition of unity", NARRATORS)
