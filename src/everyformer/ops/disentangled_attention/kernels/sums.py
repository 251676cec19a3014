"""d c2p and d p2c: sums of dS over the tokens of each bucket, from near dS and far sums."""

import triton
import triton.language as tl

from everyformer.ops.disentangled_attention.kernels.buckets import (
    near_keys,
    near_queries,
)


@triton.jit
def _sum_of_end(band, begin, end, there, WIDTH: tl.constexpr):
    """The sum of some entries of each row of dS, from begin to end."""
    place = begin[:, None] + tl.arange(0, WIDTH)[None, :]
    inside = there[:, None] & (place < end[:, None])
    entries = tl.load(band[:, None] + place, mask=inside, other=0.0)
    return tl.sum(entries.to(tl.float32), 1)


@triton.jit(do_not_specialize=("first_program",))
def sums_kernel(
    TABLE, EDGES, BAND, FAR, OUT, first_program, tiles, n_own, n_other, n_k, width, scale,
    R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BY_QUERY: tl.constexpr,
    ROWS: tl.constexpr, BUCKETS: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Some rows and buckets, of the tokens whose tiles other programs have stored.

    With BY_QUERY rows are queries and the others keys: key j = i - r is at offset r. Else
    rows are keys and the others queries, i = j + r. Row and place of an entry in BAND:
    those of its token within the programs of this launch, and of the other token after the
    first one of a near tile. The tokens of a bucket lie side by side there. Those of the
    first and last bucket are at its ends, and in FAR what the far tiles gave.
    """
    OWN: tl.constexpr = BM if BY_QUERY else BN
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    number = tl.program_id(0) * ROWS // OWN + first_program
    pair, start = (number // tiles).to(tl.int64), number % tiles * OWN
    own = start + rows % OWN
    there = own < n_own
    low, high = tl.load(TABLE), tl.load(TABLE + 1)
    first, last = tl.load(TABLE + 2), tl.load(TABLE + 3)
    if BY_QUERY:
        near, far, _ = near_keys(TABLE, start, n_k, BM, BN)
        before, after = own - high + 1, own - low
    else:
        near, far, _ = near_queries(TABLE, start, n_other, BM, BN)
        before, after = own + low + 1, own + high
    far = tl.minimum(far, n_other)
    band = BAND + rows.to(tl.int64) * width - near
    bucket = tl.program_id(1) * BUCKETS + tl.arange(0, BUCKETS)
    counts = (bucket != first) & (bucket != last) & (bucket < R)
    begins = tl.load(EDGES + bucket, mask=bucket < R, other=0) - (n_k - 1)
    ends = tl.load(EDGES + bucket + 1, mask=bucket < R, other=0) - (n_k - 1)
    if BY_QUERY:
        begin, end = own[:, None] - ends[None, :] + 1, own[:, None] - begins[None, :] + 1
    else:
        begin, end = own[:, None] + begins[None, :], own[:, None] + ends[None, :]
    begin, end = tl.maximum(begin, near), tl.minimum(end, far)
    inner = counts[None, :] & there[:, None]
    total = tl.zeros([ROWS, BUCKETS], dtype=tl.float32)
    # Most buckets have one offset each, of which no other is asked for.
    longest = tl.max(tl.where(counts, ends - begins, 0))
    for step in range(longest):
        inside = inner & (begin + step < end)
        entries = tl.load(band[:, None] + (begin + step), mask=inside, other=0.0)
        total += entries.to(tl.float32)
    # The bucket of the tokens before the near tiles, and of those after them.
    left, right = (last, first) if BY_QUERY else (first, last)
    block = tl.program_id(1) * BUCKETS
    if (left >= block) & (left < block + BUCKETS):
        stop = tl.minimum(tl.maximum(before, near), far)
        found = _sum_of_end(band, before * 0 + near, stop, there, ENDS)
        found += tl.load(FAR + 2 * rows)
        total += tl.where(bucket[None, :] == left, found[:, None], 0.0)
    if (right >= block) & (right < block + BUCKETS):
        begin_right = tl.maximum(tl.maximum(after, before), near)
        found = _sum_of_end(band, begin_right, after * 0 + far, there, ENDS)
        found += tl.load(FAR + 2 * rows + 1)
        total += tl.where(bucket[None, :] == right, found[:, None], 0.0)
    place = OUT + (pair * n_own + own[:, None]) * R + bucket[None, :]
    value = (total * scale).to(OUT.dtype.element_ty)
    tl.store(place, value, mask=there[:, None] & (bucket[None, :] < R))
