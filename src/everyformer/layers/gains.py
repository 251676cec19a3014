"""URPE: learnable factors on the weights of attention, after the softmax.

    A_U(X) = softmax(X W_Q (X W_K)^T + B) ⊙ C        (Luo et al. 2022, Equation 8)

C starts at all ones, so a layer starts as the layer without it. One gain may serve several
layers: pass the same object to each.
"""

import copy
from abc import ABC, abstractmethod

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.graphs.graph import RESERVED, Graph, distance_entries
from everyformer.layers.offsets import (
    Exact,
    LogBuckets,
    OffsetIndex,
    T5Buckets,
    by_offset,
    check_positive,
    spread_offsets,
)
from everyformer.layers.window import window_entries
from everyformer.model.own_classes import describes_itself
from everyformer.papers import LUO2022, implements

GAIN = "urpe_gain"
"""Name of the gain that `add_urpe` puts on a module."""


class Gain(nn.Module, ABC):
    """A table of factors for each head; subclasses say what it is looked up by."""

    relative_to = "offset"
    whole = False
    """Whether queries and keys must be the same tokens, as in a window or a graph."""
    no_decay = ("table",)

    def __init__(
        self,
        num_heads: int,
        size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """A table of ones."""
        super().__init__()
        check_positive(num_heads=num_heads)
        self.num_heads = num_heads
        self.table = nn.Parameter(torch.empty(num_heads, size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All ones: the layer without a gain."""
        nn.init.ones_(self.table)

    def offset_gain(
        self, n_q: int, n_k: int | None = None, offset: int | None = None
    ) -> Float[Tensor, "h_or_1 r"] | None:
        """C as a vector by offset, if C is Toeplitz; as `toeplitz_attention` takes it."""
        return None

    @abstractmethod
    def matrix(
        self,
        n_q: int,
        n_k: int | None = None,
        graph: Graph | None = None,
        offset: int | None = None,
    ) -> Float[Tensor, "b_or_1 h {n_q} n_k"]:
        """C as a matrix for each head; n_k and offset as in `Encoding`."""

    def different_rows(self, n: int, *, causal: bool) -> int:
        """How many rows of C differ in the shares of the entries they hold.

        With uniform weights the sum of row i of A is sum_e share_i(e) c_e, where share_i(e)
        counts the keys j that i sees with entry e. Two rows have different sums for some
        table if and only if their shares differ; then for almost all tables.
        """
        with torch.no_grad():
            own = copy.deepcopy(self).double()
            own.table.copy_(torch.arange(own.table.numel()).reshape(own.table.shape))
            entries = own.matrix(n)[0].long().numpy()  # [h, n, n]
        return min(_different_rows(head, causal=causal) for head in entries)


def _different_rows(entries: np.ndarray, *, causal: bool) -> int:
    """Rows as counts of their entries, divided by what all counts have in common."""
    rows: set[bytes] = set()
    for i, row in enumerate(entries):
        kinds, counts = np.unique(row[: i + 1] if causal else row, return_counts=True)
        rows.add(kinds.tobytes() + (counts // np.gcd.reduce(counts)).tobytes())
    return len(rows)


@describes_itself()
@implements(LUO2022, "Equation 8")
class ToeplitzGain(Gain):
    """c_{i-j} for each head: the gain of URPE on sequences.

    `table[h, k + max_len - 1]` is the factor of head h at offset k = i - j.

    Args:
        num_heads: Number of heads.
        max_len: Longest sequence; 2 max_len - 1 numbers per head.
        clamp: Clip the offsets of longer sequences instead of refusing them.
        buckets: Share numbers between offsets (`T5Buckets`, `LogBuckets`); then max_len
            and clamp are not used.
        device: As in torch.
        dtype: As in torch.

    Example:
        >>> ToeplitzGain(12, max_len=128).table.numel()
        3060
    """

    def __init__(
        self,
        num_heads: int,
        max_len: int = 512,
        *,
        clamp: bool = False,
        buckets: OffsetIndex | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        index = Exact(max_len, clamp) if buckets is None else buckets
        super().__init__(num_heads, index.size, device, dtype)
        self.index = index

    def offset_gain(
        self, n_q: int, n_k: int | None = None, offset: int | None = None
    ) -> Float[Tensor, "h r"] | None:
        """c_k for all offsets k, as `by_offset` orders them."""
        return by_offset(self.table, self.index, n_q, n_k, offset)

    def different_rows(self, n: int, *, causal: bool) -> int:
        """As for every gain; 0, not known, for an index that is not the library's."""
        if type(self.index) not in (Exact, T5Buckets, LogBuckets):
            return 0
        return super().different_rows(n, causal=causal)

    def matrix(
        self,
        n_q: int,
        n_k: int | None = None,
        graph: Graph | None = None,
        offset: int | None = None,
    ) -> Float[Tensor, "1 h {n_q} n_k"]:
        """c_{i-j}."""
        n_k = n_q if n_k is None else n_k
        vector = by_offset(self.table, self.index, n_q, n_k, offset)
        return spread_offsets(vector[:, None].expand(-1, n_q, -1), n_k)[None]

    def extra_repr(self) -> str:
        """The heads and the index."""
        return f"num_heads={self.num_heads}, index={self.index}"


@describes_itself()
class WindowGain(Gain):
    """c_{dx, dy} for each head, on the tokens of a window of M x M, row by row.

    `table[h, (dx + M - 1) (2M - 1) + dy + M - 1]` belongs to query minus key (dx, dy).
    """

    whole = True

    def __init__(
        self,
        num_heads: int,
        window: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """A window of `window` rows and columns."""
        check_positive(window=window)
        super().__init__(num_heads, (2 * window - 1) ** 2, device, dtype)
        self.window = window

    def matrix(
        self,
        n_q: int,
        n_k: int | None = None,
        graph: Graph | None = None,
        offset: int | None = None,
    ) -> Float[Tensor, "1 h {n_q} {n_q}"]:
        """The factors of all pairs of tokens."""
        return self.table[:, window_entries(self.window, n_q, self.table.device)][None]


class HeadGain(Gain):
    """c for each head, whatever the offset: the control of URPE.

    It scales attention as a gain may, and knows no positions.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """One number for each head."""
        super().__init__(num_heads, 1, device, dtype)

    def matrix(
        self,
        n_q: int,
        n_k: int | None = None,
        graph: Graph | None = None,
        offset: int | None = None,
    ) -> Float[Tensor, "1 h {n_q} n_k"]:
        """The same factor for all pairs of tokens."""
        n_k = n_q if n_k is None else n_k
        return self.table[None, :, :, None].expand(1, -1, n_q, n_k)


@describes_itself()
class GraphGain(Gain):
    """c_{distance(i, j)} for each head: URPE on graphs, the same after a renumbering.

    `table[h]` holds the factors of pairs with the virtual node, of unreachable pairs, and
    of the distances 0, 1, .., max_distance.

    Args:
        num_heads: Number of heads.
        max_distance: The largest distance with its own number.
        clamp: Whether larger distances count as max_distance, or are refused.
        device: As in torch.
        dtype: As in torch.
    """

    relative_to = "graph"
    whole = True

    def different_rows(self, n: int, *, causal: bool) -> int:
        """Not known: 0. It depends on the graph."""
        return 0

    def __init__(
        self,
        num_heads: int,
        max_distance: int,
        *,
        clamp: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_positive(max_distance=max_distance)
        super().__init__(num_heads, RESERVED + max_distance + 1, device, dtype)
        self.max_distance = max_distance
        self.clamp = clamp

    def matrix(
        self,
        n_q: int,
        n_k: int | None = None,
        graph: Graph | None = None,
        offset: int | None = None,
    ) -> Float[Tensor, "b h {n_q} {n_q}"]:
        """The factors of all pairs of nodes."""
        entries = distance_entries(graph, n_q, self.max_distance, self.clamp)
        return torch.nn.functional.embedding(entries, self.table.T).movedim(-1, 1)


def load_official_gain(gain: ToeplitzGain, table: Float[Tensor, "r h"]) -> None:
    """Copy a table of the released URPE code, which is indexed by j - i, into a gain.

    The released code stores offset j - i at row (j - i) + (L - 1), one column per head;
    here offset i - j is at column (i - j) + (L - 1). So it is flipped and transposed.

    Raises:
        InputError: If the shapes do not fit.

    Example:
        >>> gain = ToeplitzGain(1, max_len=2)
        >>> load_official_gain(gain, torch.tensor([[-1.0], [0.0], [1.0]]))
        >>> gain.table.tolist()  # i - j = -1 was j - i = 1
        [[1.0, 0.0, -1.0]]
    """
    wanted = (gain.table.shape[1], gain.num_heads)
    if not isinstance(gain.index, Exact) or tuple(table.shape) != wanted:
        msg = (
            f"The table has shape {tuple(table.shape)}, the gain has index {gain.index} "
            f"and needs {wanted}, one row per offset. Make the gain with max_len = "
            "(rows + 1) / 2, num_heads = columns and without buckets."
        )
        raise InputError(msg)
    with torch.no_grad():
        gain.table.copy_(table.flip(0).T)
