"""Which entry of a table belongs to the offset k = i - j, query minus key.

A table has one entry for every offset (`Exact`), or one for every bucket of offsets
(`T5Buckets`, `LogBuckets`). Buckets are kept as the first distance of each, so that all
devices agree on them.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from everyformer.errors import InputError


@runtime_checkable
class OffsetIndex(Protocol):
    """A map from offsets to the entries of a table."""

    @property
    def size(self) -> int:
        """Number of entries."""
        ...

    def check(self, n: int) -> None:
        """Refuse a length whose offsets have no entry."""
        ...

    def __call__(self, offsets: Int[Tensor, " r"]) -> Int[Tensor, " r"]:
        """The entry of each offset."""
        ...


@dataclass(frozen=True)
class Exact:
    """One entry for each offset: k is at k + max_len - 1.

    Attributes:
        max_len: The longest sequence, L. The table has 2 L - 1 entries.
        clamp: Whether longer sequences are allowed; their offsets are clipped to
            -(L - 1) .. L - 1.

    Example:
        >>> Exact(3)(torch.arange(-2, 3))
        tensor([0, 1, 2, 3, 4])
    """

    max_len: int
    clamp: bool = False

    def __post_init__(self) -> None:
        """Refuse a length below 1."""
        check_positive(max_len=self.max_len)

    @property
    def size(self) -> int:
        """2 max_len - 1."""
        return 2 * self.max_len - 1

    def check(self, n: int) -> None:
        """Refuse n > max_len, unless offsets are clipped."""
        if n > self.max_len and not self.clamp:
            msg = (
                f"The sequence has {n} tokens, but the table was made for max_len="
                f"{self.max_len} and has no entry for offsets beyond {self.max_len - 1}. "
                "Make it larger, shorten the sequence, or pass clamp=True to clip offsets."
            )
            raise InputError(msg)

    def __call__(self, offsets: Int[Tensor, " r"]) -> Int[Tensor, " r"]:
        """k + max_len - 1, clipped to the table."""
        return (offsets + (self.max_len - 1)).clamp(0, self.size - 1)


@dataclass(frozen=True)
class T5Buckets:
    """The buckets of T5: exact for near keys, logarithmic for far ones.

    With E = N / 2 exact buckets of N for one direction, distance t is in bucket

        t                                                   if t < E
        min(N - 1, E + floor(ln(t / E) / ln(max_distance / E) (N - E)))      otherwise.

    Bidirectional: half of the buckets for keys at or before the query, half for later
    ones. Otherwise all buckets are for the past, and later keys share bucket 0.

    Attributes:
        num_buckets: Number of entries.
        max_distance: All distances from here on share a bucket.
        bidirectional: Whether later keys have buckets of their own.

    Example:
        >>> T5Buckets(8, 16)(torch.tensor([-9, -1, 0, 1, 2, 5, 40]))
        tensor([7, 5, 0, 1, 2, 2, 3])
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse sizes without a logarithmic part, and find where buckets begin."""
        one_way = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        exact = one_way // 2
        if exact < 1 or self.max_distance <= exact:
            msg = (
                f"num_buckets={self.num_buckets} and max_distance={self.max_distance} "
                f"leave {exact} exact buckets; there must be one or more, and fewer than "
                "max_distance. Use the sizes of T5, 32 and 128."
            )
            raise InputError(msg)
        distance = torch.arange(exact, self.max_distance + 1, device="cpu")
        # In float32, as the released models: a rounded logarithm decides on some distances.
        growth = torch.log(distance.float() / exact) / math.log(self.max_distance / exact)
        far = exact + (growth * (one_way - exact)).long()
        bucket = [*range(exact), *far.clamp(max=one_way - 1).tolist()]
        object.__setattr__(self, "starts", _starts(bucket, one_way))

    @property
    def size(self) -> int:
        """The number of buckets."""
        return self.num_buckets

    def check(self, n: int) -> None:
        """Every length has buckets."""

    def __call__(self, offsets: Int[Tensor, " r"]) -> Int[Tensor, " r"]:
        """The bucket of each offset."""
        if not self.bidirectional:
            return _bucket(offsets.clamp(min=0), self.starts)
        later = (offsets < 0) * (self.num_buckets // 2)
        return _bucket(offsets.abs(), self.starts) + later


@dataclass(frozen=True)
class LogBuckets:
    """The buckets of DeBERTa-v2: odd in the offset, exact up to num_buckets / 2.

    With h = num_buckets / 2, distance t is in bucket

        t                                                            if t <= h
        h + ceil(ln(t / h) / ln((max_distance - 1) / h) (h - 1))        otherwise,

    offset k in bucket sign(k) b(|k|), at entry sign(k) b(|k|) + num_buckets - 1.
    Differs from the released code: distances beyond max_distance - 1 count as that one,
    on both sides.

    Attributes:
        num_buckets: Buckets for one direction; the table has 2 num_buckets - 1 entries.
        max_distance: One more than the largest distance that is told apart.

    Example:
        >>> LogBuckets(4, 9)(torch.tensor([-8, -1, 0, 1, 2, 3, 5, 8]))
        tensor([0, 2, 3, 4, 5, 6, 6, 6])
    """

    num_buckets: int = 256
    max_distance: int = 512
    starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse sizes without a logarithmic part, and find where buckets begin."""
        half = self.num_buckets // 2
        if half < 1 or self.num_buckets % 2 or self.max_distance - 1 <= half:
            msg = (
                f"num_buckets={self.num_buckets} and max_distance={self.max_distance} do "
                "not fit: num_buckets must be even and positive, max_distance above "
                "num_buckets / 2 + 1. Use the sizes of DeBERTa-v3, 256 and 512."
            )
            raise InputError(msg)
        distance = torch.arange(half + 1, self.max_distance, device="cpu")
        top = torch.tensor((self.max_distance - 1) / half, device="cpu").log()
        far = torch.ceil(torch.log(distance / half) / top * (half - 1)).long() + half
        bucket = [*range(half + 1), *far.tolist()]
        object.__setattr__(self, "starts", _starts(bucket, self.num_buckets))

    @property
    def size(self) -> int:
        """2 num_buckets - 1."""
        return 2 * self.num_buckets - 1

    def check(self, n: int) -> None:
        """Every length has buckets."""

    def __call__(self, offsets: Int[Tensor, " r"]) -> Int[Tensor, " r"]:
        """The entry of each offset."""
        bucket = _bucket(offsets.abs(), self.starts)
        return torch.sign(offsets) * bucket + (self.num_buckets - 1)


def _starts(bucket: list[int], num_buckets: int) -> tuple[int, ...]:
    """The first distance in bucket 1 or later, in 2 or later, and so on."""
    return tuple(bisect_left(bucket, b) for b in range(1, num_buckets) if b <= bucket[-1])


def _bucket(distance: Int[Tensor, " r"], starts: tuple[int, ...]) -> Int[Tensor, " r"]:
    edges = torch.tensor(starts, device=distance.device, dtype=torch.long)
    return torch.bucketize(distance, edges, right=True)


def first_and_last(n_q: int, n_k: int | None, offset: int | None) -> tuple[int, int]:
    """The smallest and the largest (i + offset) - j of n_q queries and n_k keys.

    Args:
        n_q: Number of queries.
        n_k: Number of keys; n_q if None.
        offset: Place of the first query, where the first key stands at 0; n_k - n_q if
            None: the queries are the last of the tokens.
    """
    n_k = n_q if n_k is None else n_k
    offset = n_k - n_q if offset is None else offset
    return offset - (n_k - 1), offset + n_q - 1


def by_offset(
    table: Float[Tensor, "*rows size"],
    index: OffsetIndex,
    n_q: int,
    n_k: int | None = None,
    offset: int | None = None,
) -> Float[Tensor, "*rows r"]:
    """The entries of all offsets of n_q queries and n_k keys, in order.

    What `toeplitz_attention` takes as `bias` and `gain`: entry r belongs to the offset
    r - (n_k - 1) + offset. See `first_and_last` for n_k and offset.
    """
    first, last = first_and_last(n_q, n_k, offset)
    reach = max(last, -first) + 1
    index.check(reach)
    # The layout of a slice would depend on its length, which a graph for any leaves open.
    exported = torch.compiler.is_exporting()
    if isinstance(index, Exact) and reach <= index.max_len and not exported:
        return table[..., index.max_len - 1 + first : index.max_len + last]
    offsets = torch.arange(first, last + 1, device=table.device)
    return table.index_select(-1, index(offsets))


def spread_offsets(
    by_offset: Float[Tensor, "*rows n_q r"], n_k: int
) -> Float[Tensor, "*rows n_q n_k"]:
    """M_ij = by_offset[i, i - j + n_k - 1]: what each query says of offsets, by key."""
    n_q = by_offset.shape[-2]
    index = _positions(n_q, n_k, by_offset.device)
    return torch.gather(by_offset, -1, index.expand(*by_offset.shape[:-2], n_q, n_k))


def collect_offsets(
    weights: Float[Tensor, "*rows n_q n_k"],
) -> Float[Tensor, "*rows n_q n_q+n_k-1"]:
    """The transpose of `spread_offsets`: the weight that each query gives each offset."""
    n_q, n_k = weights.shape[-2:]
    index = _positions(n_q, n_k, weights.device).expand_as(weights)
    zeros = weights.new_zeros(*weights.shape[:-1], n_q + n_k - 1)
    return zeros.scatter(-1, index, weights)


def _positions(n_q: int, n_k: int, device: torch.device) -> Int[Tensor, "{n_q} {n_k}"]:
    queries = torch.arange(n_q, device=device)
    return queries[:, None] - torch.arange(n_k, device=device) + (n_k - 1)


def check_positive(**sizes: int) -> None:
    """Refuse sizes that are not integers above 0; all at once."""
    wrong = [
        f"{name}={value!r}"
        for name, value in sizes.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < 1
    ]
    if wrong:
        msg = f"{', '.join(wrong)} cannot be a size. Give a whole number, 1 or more."
        raise InputError(msg)
