"""The weights of a block as one row, so that a kernel reads memory once, in order.

attention row      for each head:  W_Q (m, d), b_Q (m), W_K (m, d), W_V (m, d), W_O (d, m)
                   and for URPE:   b_V (m), gain (2n - 1)
                   after the heads of a sparse layer:  mask (n, n), 1 where token j (row)
                                   attends to token k, else 0
feed-forward row   W_1 (r, d), b_1 (r), W_2 (d, r), b_2 (d)
                   and for Phi:    breaks (r, 2), closed (r, 2), slopes (r, 3),
                                   intercepts (r, 3)
"""

from dataclasses import dataclass, replace

import numpy as np

from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage


@dataclass(frozen=True)
class PackedLayers:
    """Consecutive layers of one kind.

    Attributes:
        name: The stage they belong to.
        kind: "attention" or "feed-forward".
        rows: One row of weights for each layer, contiguous.
        sizes: (h, m) or (r,).
        special: True for hardmax, or for an activation in Phi.
        relative: True for attention with a gain and a bias of the value.
        masked: True for attention with a mask.
    """

    name: str
    kind: str
    rows: np.ndarray
    sizes: tuple[int, ...]
    special: bool
    relative: bool = False
    masked: bool = False


def pack(stages: tuple[Stage, ...], spec: ArchitectureSpec) -> tuple[PackedLayers, ...]:
    """The network as runs of layers of one kind, in the order of execution."""
    runs: list[PackedLayers] = []
    hard = spec.normaliser == "hardmax"
    for stage in stages:
        halves: list[PackedLayers] = []
        if stage.attention is not None:
            halves.append(_attention(stage.name, stage.attention, hard, spec.seq_len))
        if stage.feed_forward is not None:
            halves.append(_feed_forward(stage.name, stage.feed_forward))
        if len(halves) == 1:
            runs += halves
            continue
        for block in range(stage.blocks):  # attention and feed-forward alternate
            runs += [replace(h, rows=h.rows[block : block + 1]) for h in halves]
    return tuple(runs)


def _attention(name: str, stack: AttentionStack, hard: bool, n: int) -> PackedLayers:
    layers, h, m, _ = stack.W_Q.shape
    parts = [stack.W_Q, stack.b_Q, stack.W_K, stack.W_V, stack.W_O]
    if stack.relative:
        parts.append(np.zeros((layers, h, m)) if stack.b_V is None else stack.b_V)
        offsets = (layers, h, 2 * n - 1)
        parts.append(np.ones(offsets) if stack.gain is None else stack.gain)
    heads = np.concatenate([part.reshape(layers, h, -1) for part in parts], axis=-1)
    row = [heads.reshape(layers, -1)]
    if stack.mask is not None:
        row.append(stack.mask.reshape(layers, -1))
    return PackedLayers(
        name,
        "attention",
        _rows(np.concatenate(row, axis=-1)),
        (h, m),
        special=hard,
        relative=stack.relative,
        masked=stack.mask is not None,
    )


def _feed_forward(name: str, stack: FeedForwardStack) -> PackedLayers:
    layers, r, _ = stack.W_1.shape
    parts = [stack.W_1, stack.b_1, stack.W_2, stack.b_2]
    if stack.phi is not None:
        phi = stack.phi
        parts += [phi.breaks, phi.closed, phi.slopes, phi.intercepts]
    rows = np.concatenate([part.reshape(layers, -1) for part in parts], axis=-1)
    special = stack.phi is not None
    return PackedLayers(name, "feed-forward", _rows(rows), (r,), special)


def _rows(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.reshape(len(array), -1), dtype=np.float64)
