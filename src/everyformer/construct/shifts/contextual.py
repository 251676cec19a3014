"""Step 2: ids that name a token and its whole sequence, by attention layers (Lemma 6)."""

from collections.abc import Iterator

import numpy as np

from everyformer.construct.shifts.constants import Constants
from everyformer.construct.shifts.feed_forward import phi_layers, ray
from everyformer.construct.shifts.step import OWN, ProofStep, cite
from everyformer.model.stacks import AttentionStack, Stage
from everyformer.numerics.kinds import NumberKind
from everyformer.papers import YUN2020, implements


@implements(YUN2020, "Lemma 6", "Appendix C.2")
def selective_shifts(c: Constants, kind: NumberKind) -> ProofStep:
    """Sweep the column ids upwards and shift the token that has the id of the layer.

    For each id l, increasing, two heads psi(.; b) with b = l -+ delta/2 and

        psi(X; b)_j = max_k u^T X_k  if u^T X_j > b,     min_k u^T X_k  if u^T X_j < b,
        X_1j += delta^{-d} (psi(X; l - delta/2) - psi(X; l + delta/2))_j,

    which adds delta^{-d} (max - min) to the first coordinate of tokens with id l and
    nothing to others. K^d layers in Theorem 2, n K^d in Theorem 3.
    """
    # Ids are integers in units of delta, so l -+ delta/2 is (2 l -+ 1) / (2K).
    doubled = 2 * np.array(c.swept_ids, dtype=object)
    biases = np.stack([doubled - 1, doubled + 1], axis=-1)  # [layers, h]
    stack = id_heads(c, kind, kind.quotient(biases, 2 * c.K), [[c.V, -c.V]])
    result = "Appendix C.2" if c.positional else "Lemma 6"
    return ProofStep(Stage.of("selective shifts", cite(result), attention=stack))


@implements(YUN2020, "Lemma 6", "Appendix C.2")
def global_shift(c: Constants, kind: NumberKind) -> ProofStep:
    """Add the largest id, times a large number, to every token: psi(.; 0), one layer.

        X_1j += C max_k u^T X_k,     C = delta^{-(n+1)d}  or  n delta^{-(n+1)d-1}

    The largest id names the sequence (Lemma 10); now every token knows it.
    """
    stack = id_heads(c, kind, kind.array([[0, 0]]), [[c.last_coefficient, 0]])
    result = "Appendix C.2" if c.positional else "Lemma 6"
    return ProofStep(Stage.of("global shift", cite(result), attention=stack))


def contextual_steps(c: Constants, kind: NumberKind) -> Iterator[ProofStep]:
    """The layers of the contextual map; a single token has no context."""
    if c.n == 1:
        yield lift(c, kind)
    else:
        yield selective_shifts(c, kind)
        yield global_shift(c, kind)


def lift(c: Constants, kind: NumberKind) -> ProofStep:
    """For n = 1: add a constant to every id, Z_1 += lift, one feed-forward layer.

    A single token has no context, and the Transformer is a residual network. All that
    is left of Lemma 6 is that ids lie far above the values written later.
    """
    amount = kind.quotient(np.array([c.lift], dtype=object), c.K)
    phi = ray(kind, 1, left=(0, 1), right=(0, 1))
    e_1 = kind.array([1] + [0] * (c.d - 1))
    nowhere = kind.array([0] * c.d)
    stack = phi_layers(kind, W_1=nowhere, W_2=amount * e_1, phi=phi)
    return ProofStep(Stage.of("lift", OWN, feed_forward=stack))


def id_heads(
    c: Constants,
    kind: NumberKind,
    biases: np.ndarray,
    outputs: list[list[int]],
    mask: np.ndarray | None = None,
) -> AttentionStack:
    """Two heads of size 1 with W_Q = W_K = W_V = u^T that write to the first coordinate.

    Args:
        c: The constants.
        kind: The kind of number of the weights.
        biases: b_Q, shape (layers, h).
        outputs: What each head is multiplied with, for each layer, or once for all.
        mask: Who attends to whom, shape (layers, n, n), or None.
    """
    layers, h, m, d = len(biases), 2, 1, c.d
    u = np.broadcast_to(kind.array(c.u), (layers, h, m, d))
    W_O = np.zeros((len(outputs), h, d, m), dtype=object)
    W_O[:, :, 0, 0] = outputs
    return AttentionStack(
        W_Q=u,
        b_Q=biases[:, :, None],
        W_K=u,
        W_V=u,
        W_O=np.broadcast_to(kind.array(W_O), (layers, h, d, m)),
        mask=mask,
    )


@implements(YUN2020, "Lemma 6", "Appendix C.2")
def contextual_ids(c: Constants, columns: np.ndarray) -> np.ndarray:
    """The ids u^T g_c(L)_j after all shifts, in units of delta, by running the layers.

    The paper's closed formula is wrong for one sequence of Theorem 3 at n = 2, d = 1, whose
    first token is shifted twice; the layers themselves are what counts.

    Args:
        c: The constants.
        columns: Column numbers of sequences, shape (count, n).

    Returns:
        An integer array of the same shape (int64, or Python ints where that overflows).
    """
    dtype = np.int64 if c.id_bits <= 62 else object
    ids = columns.astype(dtype) + np.array(c.position_ids, dtype=dtype)
    if c.n == 1:
        return ids + c.lift
    for swept in c.swept_ids:
        spread = ids.max(axis=-1, keepdims=True) - ids.min(axis=-1, keepdims=True)
        ids = ids + np.where(ids == swept, c.V * spread, 0)
    return ids + c.last_coefficient * ids.max(axis=-1, keepdims=True)


def contextual_state(c: Constants, columns: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """g_c(L)_j in units of delta: coordinates 2..d never move, the first holds the rest.

    Args:
        c: The constants.
        columns: Column numbers, shape (count, n).
        ids: Their ids after the shifts, shape (count, n).

    Returns:
        Shape (count, n, d).
    """
    steps = [step * c.spacing for step in c.steps]
    state = c.grid.digits(columns).astype(ids.dtype)
    state = state + np.array(steps, dtype=ids.dtype)[:, None]
    rest = sum((state[..., i] * c.u[i] for i in range(1, c.d)), start=np.zeros_like(ids))
    state[..., 0] = ids - rest
    return state
