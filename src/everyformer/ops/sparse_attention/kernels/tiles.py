"""Triton kernels for bands, listed tokens and blocks: forward, dQ, dK and dV.

A program owns one tile of tokens and walks tiles of partners: queries own in the forward
pass and for dQ, keys for dK and dV. Shapes in comments: M owners and N partners of a tile,
D the head size. Scores are in base 2. A sum over partners that would keep one program busy
for long is cut into slots, whose results `joining` puts together in a fixed order.
"""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import dropped_pairs
from everyformer.ops.sparse_attention.kernels.rows import (
    load_lse,
    load_rows,
    load_wide,
    store_rows,
)

BAND = tl.constexpr(0)
LISTED = tl.constexpr(1)
BLOCKS = tl.constexpr(2)
STRIP = tl.constexpr(3)

SIZES = [
    "slots",
    "owners",
    "partners",
    "gap_before",
    "gap_after",
    "segment",
    "tiles",
    "chunk",
    "threshold",
]
"""What changes with the pattern and not the kernel: no new compilation for these."""


@triton.jit
def _work(
    ITEMS, n, shift, step, limit, owners, partners, before, after, tiles, chunk,
    TILE: tl.constexpr, BLOCK: tl.constexpr, VISIT: tl.constexpr,
):  # fmt: skip
    """What a program does: origin, first owner, their end, first partner, end, slot, cut.

    BAND: tile t of class c, partners first - before .. last + after of the class.
    LISTED: tile t of the owners, chunk s of the partners. STRIP: the same, with an item
    that says which partners, since later ones do not count. BLOCKS: an item that names a
    tile, a stretch of the lists of blocks (SPAN places for each block), a slot or -1, and
    where the own block begins or, for keys, ends, of which later keys do not count.
    """
    number = tl.program_id(0)
    cut = 0
    if VISIT == BLOCKS:
        origin = 0
        first = tl.load(ITEMS + 5 * number)
        low = tl.load(ITEMS + 5 * number + 1)
        high = tl.load(ITEMS + 5 * number + 2)
        slot = tl.load(ITEMS + 5 * number + 3)
        cut = tl.load(ITEMS + 5 * number + 4)
        end = tl.minimum(first // BLOCK * BLOCK + BLOCK, n)
    elif VISIT == LISTED:
        origin = 0
        first = number % tiles * TILE
        low = number // tiles * chunk
        high = tl.minimum(low + chunk, partners)
        slot = number
        end = owners
    elif VISIT == STRIP:
        origin = 0
        first = number % tiles * TILE
        low = tl.load(ITEMS + 2 * number)
        high = tl.load(ITEMS + 2 * number + 1)
        slot = number
        end = owners
    else:
        origin = number // tiles * shift
        first = number % tiles * TILE
        end = tl.minimum(limit, (n - origin + step - 1) // step)
        low = tl.maximum(0, first - before)
        high = tl.minimum(end, first + TILE + after)
        slot = -1
    return origin, first, end, low, high, slot, cut


@triton.jit
def _places(LIST, index, there, origin, step, IS_LIST: tl.constexpr):
    """The tokens of indices: from a list, or a progression."""
    if IS_LIST:
        return tl.load(LIST + index, mask=there, other=0)
    return origin + step * index


@triton.jit
def _partners(
    t, TABLE, LIST, n, high, origin, step,
    TILE: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
    VISIT: tl.constexpr, IS_LIST: tl.constexpr,
):  # fmt: skip
    """Index, token and existence of the partners of tile t."""
    within = tl.arange(0, TILE)
    if VISIT == BLOCKS:
        inside = t % SPAN + within
        index = tl.load(TABLE + t // SPAN) * BLOCK + inside
        there = (inside < BLOCK) & (index < n)
        places = index
    else:
        index = t + within
        there = index < high
        places = _places(LIST, index, there, origin, step, IS_LIST)
    return index, places, there


@triton.jit
def _counts(
    index, places, partner, partner_places, there,
    before, after, gap_before, gap_after, segment,
    WINDOW: tl.constexpr, GAP: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    """Which pairs count, [M, N]."""
    counts = there[None, :]
    if WINDOW:
        way = partner[None, :] - index[:, None]
        counts = counts & (way >= -before) & (way <= after)
    if GAP:
        way = partner_places[None, :] - places[:, None]
        counts = counts & ((way < -gap_before) | (way > gap_after))
    if SEGMENT:
        counts = counts & (places[:, None] // segment != partner_places[None, :] // segment)
    return counts


@triton.jit
def _whole(
    first, low, high, cut, end, before, after,
    M: tl.constexpr, N: tl.constexpr, VISIT: tl.constexpr, PLAIN: tl.constexpr,
    GAP: tl.constexpr, HAS_PAD: tl.constexpr, QUERIES_OWN: tl.constexpr,
):  # fmt: skip
    """From where to where tiles of partners need no mask; from high on if nowhere.

    PLAIN says that pairs are left out by the window alone, or that blocks are whole.
    """
    if PLAIN and not HAS_PAD and VISIT == BAND:
        start = tl.maximum(low, first + M - 1 - before)
        start = low + tl.cdiv(start - low, N) * N
        stop = tl.minimum(high, first + after + 1)
        stop = start + tl.maximum(stop - start, 0) // N * N
        if stop <= start:
            start = high
            stop = high
    elif PLAIN and not HAS_PAD and VISIT == LISTED:
        start = low
        stop = low + (high - low) // N * N
    elif PLAIN and not HAS_PAD and VISIT == BLOCKS:
        start = low
        stop = high
        if GAP and QUERIES_OWN:
            stop = cut
        elif GAP:
            start = cut
    else:
        start = high
        stop = high
    return start, stop


@triton.jit
def _stretch(low, start, stop, high, phase: tl.constexpr):
    """Before the tiles that need no mask, these, and after them."""
    if phase == 0:
        begin, finish = low, start
    elif phase == 1:
        begin, finish = start, stop
    else:
        begin, finish = stop, high
    return begin, finish


@triton.constexpr_function
def _stages(phase: int, visit: int, plain: bool, padded: bool) -> int | None:
    """1 where a program masks nothing but its own block: that is not read ahead.

    A second loop that is would take registers and shared memory from the first, and every
    fourth program would have no room. None is the number of stages of the kernel.
    """
    return 1 if phase != 1 and visit == BLOCKS.value and plain and not padded else None


@triton.jit
def _forward_tiles(
    acc, l_i, m_i, q, k_base, v_base, pad, SEED, b, h, TABLE, KEYS, index, places, offs_d,
    stride_kn, stride_vn, n, high, origin, step, before, after, gap_before, gap_after,
    segment, scale, threshold, growth, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, VISIT: tl.constexpr, LIST_KEYS: tl.constexpr,
    WINDOW: tl.constexpr, GAP: tl.constexpr, SEGMENT: tl.constexpr,
    HAS_PAD: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Tiles of keys from start to stop; MASKED if some pairs may not count."""
    for t in tl.range(start, stop, N, num_stages=STAGES):
        key, key_places, there = _partners(
            t, TABLE, KEYS, n, high, origin, step, N, BLOCK, SPAN, VISIT, LIST_KEYS
        )
        k = load_rows(k_base, key_places, there, stride_kn, offs_d, D, BLOCK_D, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        if MASKED:
            if HAS_PAD:
                there = there & (tl.load(pad + key_places, mask=there, other=1) == 0)
            counts = _counts(
                index, places, key, key_places, there, before, after,
                gap_before, gap_after, segment, WINDOW, GAP, SEGMENT,
            )  # fmt: skip
            s = tl.where(counts, s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        m_safe = m_new
        if MASKED:
            m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        if DROP:
            p *= dropped_pairs(
                SEED, b, h, places[:, None], key_places[None, :], threshold, growth
            )
        v = load_rows(v_base, key_places, there, stride_vn, offs_d, D, BLOCK_D, MASKED)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=SIZES)
def _forward_kernel(
    Q, K, V, PADDED, SEED, QUERIES, KEYS, TABLE, ITEMS, OUT, LSE, PART, PART_LSE,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_pb, slots, H, n, scale, threshold, growth,
    shift, step, limit, owners, partners, before, after, gap_before, gap_after, segment,
    tiles, chunk,
    D: tl.constexpr, BLOCK_D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr, SPAN: tl.constexpr, VISIT: tl.constexpr,
    LIST_QUERIES: tl.constexpr, LIST_KEYS: tl.constexpr, WINDOW: tl.constexpr,
    GAP: tl.constexpr, SEGMENT: tl.constexpr, PLAIN: tl.constexpr, OWN: tl.constexpr,
    AGAIN: tl.constexpr, SLOTS: tl.constexpr, HAS_PAD: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries: running maximum, sum of exp, and sum of exp * v.

    OWN begins with the query's own key, AGAIN with what OUT and LSE hold already.
    """
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    origin, first, end, low, high, slot, cut = _work(
        ITEMS, n, shift, step, limit, owners, partners, before, after, tiles, chunk,
        M, BLOCK, VISIT,
    )  # fmt: skip
    index, offs_d = first + tl.arange(0, M), tl.arange(0, BLOCK_D)
    here = index < end
    places = _places(QUERIES, index, here, origin, step, LIST_QUERIES)
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    pad = PADDED + b * stride_pb
    q_base = Q + b * stride_qb + h * stride_qh
    q = load_rows(q_base, places, here, stride_qn, offs_d, D, BLOCK_D, True)
    out_base, lse_base = OUT + pair * n * D, LSE + pair * n
    done = here
    if SLOTS:
        done = here & (index * 0 + slot < 0)
    acc = tl.zeros([M, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([M], dtype=tl.float32)
    m_i = tl.full([M], float("-inf"), dtype=tl.float32)
    if OWN:
        own = here
        if HAS_PAD:
            own = own & (tl.load(pad + places, mask=here, other=1) == 0)
        k = load_rows(k_base, places, own, stride_kn, offs_d, D, BLOCK_D, True)
        v = load_rows(v_base, places, own, stride_vn, offs_d, D, BLOCK_D, True)
        s = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
        m_i = tl.where(own, s, float("-inf"))
        l_i = tl.where(own, 1.0, 0.0)
        acc = v.to(tl.float32)
        if DROP:
            acc *= dropped_pairs(SEED, b, h, places, places, threshold, growth)[:, None]
    if AGAIN:
        m_i = tl.load(lse_base + places, mask=done, other=float("-inf"))
        l_i = tl.where(m_i == float("-inf"), 0.0, 1.0)
        acc = load_wide(out_base, places, done, D, offs_d, D, BLOCK_D)
    start, stop = _whole(
        first, low, high, cut, end, before, after, M, N, VISIT, PLAIN, GAP, HAS_PAD, True
    )
    for phase in tl.static_range(3):
        begin, finish = _stretch(low, start, stop, high, phase)
        acc, l_i, m_i = _forward_tiles(
            acc, l_i, m_i, q, k_base, v_base, pad, SEED, b, h, TABLE, KEYS, index, places,
            offs_d, stride_kn, stride_vn, n, high, origin, step, before, after, gap_before,
            gap_after, segment, scale, threshold, growth, begin, finish, D, BLOCK_D, N,
            BLOCK, SPAN, VISIT, LIST_KEYS, WINDOW, GAP, SEGMENT, HAS_PAD, DROP, PRECISION,
            phase != 1, _stages(phase, VISIT, PLAIN, HAS_PAD),
        )  # fmt: skip
    empty = l_i == 0
    total = tl.where(empty, 1.0, l_i)
    out = acc / total[:, None]
    lse = tl.where(empty, float("-inf"), m_i + tl.log2(total))
    if SLOTS:
        parted = here & (index * 0 + slot >= 0)
        rows = slot * M + tl.arange(0, M)
        part_base = PART + pair * slots * D
        store_rows(part_base, rows, parted, offs_d, out, D, BLOCK_D)
        tl.store(PART_LSE + pair * slots + rows, lse, mask=parted)
    store_rows(out_base, places, done, offs_d, out, D, BLOCK_D)
    tl.store(lse_base + places, lse, mask=done)


@triton.jit
def _dq_tiles(
    dq, q, do, lse, delta, k_base, v_base, pad, SEED, b, h, TABLE, KEYS, index, places,
    offs_d, stride_kn, stride_vn, n, high, origin, step, before, after, gap_before,
    gap_after, segment, scale, threshold, growth, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, VISIT: tl.constexpr, LIST_KEYS: tl.constexpr,
    WINDOW: tl.constexpr, GAP: tl.constexpr, SEGMENT: tl.constexpr,
    HAS_PAD: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dQ = dS K over tiles of keys, dS = P (G - Delta)."""
    for t in tl.range(start, stop, N, num_stages=STAGES):
        key, key_places, there = _partners(
            t, TABLE, KEYS, n, high, origin, step, N, BLOCK, SPAN, VISIT, LIST_KEYS
        )
        k = load_rows(k_base, key_places, there, stride_kn, offs_d, D, BLOCK_D, MASKED)
        v = load_rows(v_base, key_places, there, stride_vn, offs_d, D, BLOCK_D, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        p = tl.exp2(s - lse[:, None])
        if MASKED:
            if HAS_PAD:
                there = there & (tl.load(pad + key_places, mask=there, other=1) == 0)
            counts = _counts(
                index, places, key, key_places, there, before, after,
                gap_before, gap_after, segment, WINDOW, GAP, SEGMENT,
            )  # fmt: skip
            p = tl.where(counts, p, 0.0)
        g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if DROP:
            g *= dropped_pairs(
                SEED, b, h, places[:, None], key_places[None, :], threshold, growth
            )
        ds = p * (g - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=SIZES)
def _dq_kernel(
    Q, K, V, PADDED, SEED, QUERIES, KEYS, TABLE, ITEMS, DOUT, OUT, LSE, DELTA,
    DQ, DK, DV, PART,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dn, stride_pb,
    slots, H, n, scale, back_scale, threshold, growth,
    shift, step, limit, owners, partners, before, after, gap_before, gap_after, segment,
    tiles, chunk,
    D: tl.constexpr, BLOCK_D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr, SPAN: tl.constexpr, VISIT: tl.constexpr,
    LIST_QUERIES: tl.constexpr, LIST_KEYS: tl.constexpr, WINDOW: tl.constexpr,
    GAP: tl.constexpr, SEGMENT: tl.constexpr, PLAIN: tl.constexpr, OWN: tl.constexpr,
    AGAIN: tl.constexpr, SLOTS: tl.constexpr, HAS_PAD: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries; the first piece also writes Delta_i = dO_i . O_i.

    OWN writes what the query's own key gets to DK and DV; AGAIN adds to DQ.
    """
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    origin, first, end, low, high, slot, cut = _work(
        ITEMS, n, shift, step, limit, owners, partners, before, after, tiles, chunk,
        M, BLOCK, VISIT,
    )  # fmt: skip
    index, offs_d = first + tl.arange(0, M), tl.arange(0, BLOCK_D)
    here = index < end
    places = _places(QUERIES, index, here, origin, step, LIST_QUERIES)
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    pad = PADDED + b * stride_pb
    q_base = Q + b * stride_qb + h * stride_qh
    do_base = DOUT + b * stride_db + h * stride_dh
    q = load_rows(q_base, places, here, stride_qn, offs_d, D, BLOCK_D, True)
    do = load_rows(do_base, places, here, stride_dn, offs_d, D, BLOCK_D, True)
    at = pair * n
    lse = load_lse(LSE + at, places, here)
    dq_base = DQ + at * D
    dq = tl.zeros([M, BLOCK_D], dtype=tl.float32)
    if AGAIN:
        delta = tl.load(DELTA + at + places, mask=here, other=0.0)
    else:
        out = load_rows(OUT + at * D, places, here, D, offs_d, D, BLOCK_D, True)
        delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
        tl.store(DELTA + at + places, delta, mask=here)
    start, stop = _whole(
        first, low, high, cut, end, before, after, M, N, VISIT, PLAIN, GAP, HAS_PAD, True
    )
    for phase in tl.static_range(3):
        begin, finish = _stretch(low, start, stop, high, phase)
        dq = _dq_tiles(
            dq, q, do, lse, delta, k_base, v_base, pad, SEED, b, h, TABLE, KEYS, index,
            places, offs_d, stride_kn, stride_vn, n, high, origin, step, before, after,
            gap_before, gap_after, segment, scale, threshold, growth, begin, finish, D,
            BLOCK_D, N, BLOCK, SPAN, VISIT, LIST_KEYS, WINDOW, GAP, SEGMENT, HAS_PAD, DROP,
            PRECISION, phase != 1, _stages(phase, VISIT, PLAIN, HAS_PAD),
        )  # fmt: skip
    if OWN:
        own = here
        if HAS_PAD:
            own = own & (tl.load(pad + places, mask=here, other=1) == 0)
        k = load_rows(k_base, places, own, stride_kn, offs_d, D, BLOCK_D, True)
        v = load_rows(v_base, places, own, stride_vn, offs_d, D, BLOCK_D, True)
        wide_q, wide_do, wide_k = q.to(tl.float32), do.to(tl.float32), k.to(tl.float32)
        s = tl.sum(wide_q * wide_k, 1) * scale
        p = tl.where(own, tl.exp2(s - lse), 0.0)
        g, kept = tl.sum(wide_do * v.to(tl.float32), 1), p
        if DROP:
            factor = dropped_pairs(SEED, b, h, places, places, threshold, growth)
            kept = p * factor
            g *= factor
        ds = p * (g - delta)
        dq += ds[:, None] * wide_k
        dk = ds[:, None] * wide_q * back_scale
        store_rows(DK + at * D, places, here, offs_d, dk, D, BLOCK_D)
        dv = kept[:, None] * wide_do
        store_rows(DV + at * D, places, here, offs_d, dv, D, BLOCK_D)
    dq *= back_scale
    done = here
    if SLOTS:
        done = here & (index * 0 + slot < 0)
        rows = slot * M + tl.arange(0, M)
        part_base = PART + pair * slots * D
        store_rows(part_base, rows, here & (index * 0 + slot >= 0), offs_d, dq, D, BLOCK_D)
    if AGAIN:
        dq += load_wide(dq_base, places, done, D, offs_d, D, BLOCK_D)
    store_rows(dq_base, places, done, offs_d, dq, D, BLOCK_D)


@triton.jit
def _dkv_tiles(
    dk, dv, k, v, q_base, do_base, LSE, DELTA, at, SEED, b, h, TABLE, QUERIES, index,
    places, offs_d, stride_qn, stride_dn, n, high, origin, step, before, after, gap_before,
    gap_after, segment, scale, threshold, growth, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, VISIT: tl.constexpr, LIST_QUERIES: tl.constexpr,
    WINDOW: tl.constexpr, GAP: tl.constexpr, SEGMENT: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """dV = P^T dO and dK = dS^T Q over tiles of queries; keys are rows here, [M, N]."""
    for t in tl.range(start, stop, N, num_stages=STAGES):
        query, query_places, there = _partners(
            t, TABLE, QUERIES, n, high, origin, step, N, BLOCK, SPAN, VISIT, LIST_QUERIES
        )
        q = load_rows(q_base, query_places, there, stride_qn, offs_d, D, BLOCK_D, MASKED)
        do = load_rows(do_base, query_places, there, stride_dn, offs_d, D, BLOCK_D, MASKED)
        lse = load_lse(LSE + at, query_places, there)
        delta = tl.load(DELTA + at + query_places, mask=there, other=0.0)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale  # [M, N]
        p = tl.exp2(s - lse[None, :])
        if MASKED:
            counts = _counts(
                index, places, query, query_places, there, before, after,
                gap_before, gap_after, segment, WINDOW, GAP, SEGMENT,
            )  # fmt: skip
            p = tl.where(counts, p, 0.0)
        g = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        kept = p
        if DROP:
            factor = dropped_pairs(
                SEED, b, h, query_places[None, :], places[:, None], threshold, growth
            )
            kept = p * factor
            g *= factor
        dv = tl.dot(kept.to(do.dtype), do, dv, input_precision=PRECISION)
        ds = p * (g - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=SIZES)
def _dkv_kernel(
    Q, K, V, PADDED, SEED, QUERIES, KEYS, TABLE, ITEMS, DOUT, LSE, DELTA,
    DK, DV, PART_K, PART_V,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dn, stride_pb,
    slots, H, n, scale, back_scale, threshold, growth,
    shift, step, limit, owners, partners, before, after, gap_before, gap_after, segment,
    tiles, chunk,
    D: tl.constexpr, BLOCK_D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr, SPAN: tl.constexpr, VISIT: tl.constexpr,
    LIST_QUERIES: tl.constexpr, LIST_KEYS: tl.constexpr, WINDOW: tl.constexpr,
    GAP: tl.constexpr, SEGMENT: tl.constexpr, PLAIN: tl.constexpr,
    AGAIN: tl.constexpr, SLOTS: tl.constexpr, HAS_PAD: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys; before and after are those of a key."""
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    origin, first, end, low, high, slot, cut = _work(
        ITEMS, n, shift, step, limit, owners, partners, before, after, tiles, chunk,
        M, BLOCK, VISIT,
    )  # fmt: skip
    index, offs_d = first + tl.arange(0, M), tl.arange(0, BLOCK_D)
    here = index < end
    places = _places(KEYS, index, here, origin, step, LIST_KEYS)
    q_base = Q + b * stride_qb + h * stride_qh
    do_base = DOUT + b * stride_db + h * stride_dh
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    k = load_rows(k_base, places, here, stride_kn, offs_d, D, BLOCK_D, True)
    v = load_rows(v_base, places, here, stride_vn, offs_d, D, BLOCK_D, True)
    at = pair * n
    dk = tl.zeros([M, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([M, BLOCK_D], dtype=tl.float32)
    start, stop = _whole(
        first, low, high, cut, end, before, after, M, N, VISIT, PLAIN, GAP, False, False
    )
    for phase in tl.static_range(3):
        begin, finish = _stretch(low, start, stop, high, phase)
        dk, dv = _dkv_tiles(
            dk, dv, k, v, q_base, do_base, LSE, DELTA, at, SEED, b, h, TABLE, QUERIES,
            index, places, offs_d, stride_qn, stride_dn, n, high, origin, step, before,
            after, gap_before, gap_after, segment, scale, threshold, growth, begin, finish,
            D, BLOCK_D, N, BLOCK, SPAN, VISIT, LIST_QUERIES, WINDOW, GAP, SEGMENT, DROP,
            PRECISION, phase != 1, _stages(phase, VISIT, PLAIN, False),
        )  # fmt: skip
    if HAS_PAD:  # a padded key gets nothing, whatever its tile computed
        padded = tl.load(PADDED + b * stride_pb + places, mask=here, other=1)
        dk = tl.where((padded == 0)[:, None], dk, 0.0)
        dv = tl.where((padded == 0)[:, None], dv, 0.0)
    dk *= back_scale
    done = here
    if SLOTS:
        done = here & (index * 0 + slot < 0)
        parted = here & (index * 0 + slot >= 0)
        rows = slot * M + tl.arange(0, M)
        part = pair * slots * D
        store_rows(PART_K + part, rows, parted, offs_d, dk, D, BLOCK_D)
        store_rows(PART_V + part, rows, parted, offs_d, dv, D, BLOCK_D)
    if AGAIN:
        dk += load_wide(DK + at * D, places, done, D, offs_d, D, BLOCK_D)
        dv += load_wide(DV + at * D, places, done, D, offs_d, D, BLOCK_D)
    store_rows(DK + at * D, places, done, offs_d, dk, D, BLOCK_D)
    store_rows(DV + at * D, places, done, offs_d, dv, D, BLOCK_D)
