"""What no weights can exceed: a target whose source is not heard stays at chance.

After L layers token k has heard S_k = union of S_j over j in A_k of layer L, and itself by
the residual connection. A symbol outside S_k is independent of everything that k heard, so
it is guessed right with probability 1 / symbols. The ceiling is exact, from the pattern.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from everyformer.experiments.sparse_copying.task import Copying
from everyformer.layers.sparse_attention import Configuration
from everyformer.patterns.pattern import Pattern


def layer_masks(
    pattern: Pattern, configuration: Configuration, layers: int
) -> list[Bool[np.ndarray, "n n"]]:
    """Which tokens each token hears in each layer; heads are taken together."""
    if configuration == "sequential":
        return [pattern.part_of(layer).mask() for layer in range(layers)]
    return [pattern.union().parts[0].mask()] * layers


def heard(masks: Sequence[Bool[np.ndarray, "n n"]]) -> Bool[np.ndarray, "n n"]:
    """Entry (k, j): whether token k has heard token j after these layers."""
    n = len(masks[0])
    fields = np.eye(n, dtype=bool)
    for mask in masks:
        reached = mask.astype(np.float32) @ fields.astype(np.float32)
        fields = fields | (reached > 0)
    return fields


def ceiling(
    task: Copying, pattern: Pattern, configuration: Configuration, layers: int
) -> float:
    """The largest expected accuracy, over all weights.

    Example:
        >>> from everyformer.patterns import fixed
        >>> round(ceiling(Copying(256, 128, 0), fixed(256, 16), "union", 1), 4)
        0.0703
    """
    fields = heard(layer_masks(pattern, configuration, layers))
    half = task.seq_len // 2
    share = float(np.mean([fields[k, k - half] for k in task.targets]))
    return share + (1 - share) / task.symbols


def sparsity(pattern: Pattern, configuration: Configuration) -> float:
    """1 - connections / n^2; the mean over parts where layers or heads take turns."""
    if configuration == "union":
        return pattern.union().sparsity[0]
    return float(np.mean(pattern.sparsity))
