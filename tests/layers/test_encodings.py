"""Each encoding equals its formula, in outputs and in all gradients."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from tests.layers.plain import (
    Rule,
    assert_equal_with_gradients,
    randomise,
    some_padding,
    sqrt_scale,
    tokens,
)
from torch import Tensor

from everyformer.layers import (
    T5,
    UNREACHABLE,
    VIRTUAL,
    Alibi,
    Deberta,
    Encoding,
    Graph,
    GraphGain,
    Graphormer,
    HeadGain,
    LogBuckets,
    RelativeAttention,
    Rotary,
    Shaw,
    Swin,
    T5Buckets,
    ToeplitzGain,
    TransformerXL,
    WindowGain,
)
from everyformer.layers.encodings import alibi_slopes
from everyformer.ops.toeplitz_attention.reference import toeplitz

WIDTH, HEADS, HEAD, LONGEST = 8, 2, 4, 7

Score = Callable[[int, int, int, int, Tensor, Tensor], Tensor]


def none(layer: RelativeAttention) -> Score:
    return lambda b, h, i, j, q, k: sqrt_scale(layer) * (q @ k)


def t5(layer: RelativeAttention) -> Score:
    assert isinstance(layer.encoding, T5)
    table = layer.encoding.table
    return lambda b, h, i, j, q, k: (
        sqrt_scale(layer) * (q @ k) + table[h, i - j + LONGEST - 1]
    )


def t5_buckets(layer: RelativeAttention) -> Score:
    """8 buckets up to distance 16: for each direction 0, 1 exactly, then 2..5 and 6.."""
    assert isinstance(layer.encoding, T5)
    table = layer.encoding.table

    def bucket(k: int) -> int:
        near = {0: 0, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2}.get(abs(k), 3)
        return near + 4 if k < 0 else near

    return lambda b, h, i, j, q, k: sqrt_scale(layer) * (q @ k) + table[h, bucket(i - j)]


def alibi(layer: RelativeAttention) -> Score:
    slopes = [2.0**-4, 2.0**-8]
    return lambda b, h, i, j, q, k: sqrt_scale(layer) * (q @ k) - slopes[h] * abs(i - j)


def rotary(layer: RelativeAttention) -> Score:
    def turn(x: Tensor, position: int) -> Tensor:
        turned = list(x)
        for t in range(HEAD // 2):
            angle = position * 10000.0 ** (-2 * t / HEAD)
            a, b = x[t], x[t + HEAD // 2]
            turned[t] = a * math.cos(angle) - b * math.sin(angle)
            turned[t + HEAD // 2] = a * math.sin(angle) + b * math.cos(angle)
        return torch.stack(turned)

    return lambda b, h, i, j, q, k: sqrt_scale(layer) * (turn(q, i) @ turn(k, j))


def shaw(layer: RelativeAttention) -> Score:
    assert isinstance(layer.encoding, Shaw)
    r = layer.encoding.key_table
    return lambda b, h, i, j, q, k: sqrt_scale(layer) * (q @ (k + r[i - j + LONGEST - 1]))


def deberta(layer: RelativeAttention) -> Score:
    assert isinstance(layer.encoding, Deberta)
    r, s = layer.encoding.key_table, layer.encoding.query_table

    def score(b: int, h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        entry = i - j + LONGEST - 1
        return sqrt_scale(layer, 3) * (q @ k + q @ r[h, entry] + s[h, entry] @ k)

    return score


def deberta_buckets(layer: RelativeAttention) -> Score:
    """4 buckets up to distance 8: 0, 1, 2 exactly, then 3 for all."""
    assert isinstance(layer.encoding, Deberta)
    r, s = layer.encoding.key_table, layer.encoding.query_table

    def score(b: int, h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        entry = max(-3, min(3, i - j)) + 3
        return sqrt_scale(layer, 3) * (q @ k + q @ r[h, entry] + s[h, entry] @ k)

    return score


def xl(layer: RelativeAttention) -> Score:
    encoding = layer.encoding
    assert isinstance(encoding, TransformerXL)

    def score(b: int, h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        waves = [(i - j) * 10000.0 ** (-2 * t / WIDTH) for t in range(WIDTH // 2)]
        r = torch.tensor(
            [*map(math.sin, waves), *map(math.cos, waves)], dtype=torch.float64
        )
        W = encoding.position_proj.weight[h * HEAD : (h + 1) * HEAD]
        u, v = encoding.u[h], encoding.v[h]
        return sqrt_scale(layer) * (q @ k + q @ (W @ r) + u @ k + v @ (W @ r))

    return score


def make(name: str) -> Encoding | None:
    kind = torch.float64
    return {
        "none": lambda: None,
        "t5": lambda: T5(HEADS, LONGEST, dtype=kind),
        "t5_buckets": lambda: T5(HEADS, buckets=T5Buckets(8, 16), dtype=kind),
        "alibi": lambda: Alibi(HEADS),
        "rotary": lambda: Rotary(),
        "shaw": lambda: Shaw(HEAD, LONGEST, dtype=kind),
        "shaw_values": lambda: Shaw(HEAD, LONGEST, values=True, dtype=kind),
        "deberta": lambda: Deberta(HEADS, HEAD, LONGEST, dtype=kind),
        "deberta_buckets": lambda: Deberta(
            HEADS, HEAD, buckets=LogBuckets(4, 8), dtype=kind
        ),
        "xl": lambda: TransformerXL(WIDTH, HEADS, dtype=kind),
    }[name]()


FORMULAS: dict[str, Callable[[RelativeAttention], Score]] = {
    "none": none,
    "t5": t5,
    "t5_buckets": t5_buckets,
    "alibi": alibi,
    "rotary": rotary,
    "shaw": shaw,
    "shaw_values": shaw,
    "deberta": deberta,
    "deberta_buckets": deberta_buckets,
    "xl": xl,
}


@pytest.mark.parametrize("urpe", [False, True], ids=["base", "urpe"])
@pytest.mark.parametrize("pads", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("name", list(FORMULAS))
def test_formula(name: str, n: int, causal: bool, pads: bool, urpe: bool) -> None:
    gain = ToeplitzGain(HEADS, LONGEST, dtype=torch.float64) if urpe else None
    layer = RelativeAttention(
        WIDTH, HEADS, encoding=make(name), gain=gain, causal=causal, dtype=torch.float64
    )
    randomise(layer)
    rule = Rule(FORMULAS[name](layer))
    if gain is not None:
        rule.gain = lambda b, h, i, j: gain.table[h, i - j + LONGEST - 1]
    if isinstance(layer.encoding, Shaw) and layer.encoding.value_table is not None:
        vectors = layer.encoding.value_table
        rule.value = lambda h, i, j: vectors[i - j + LONGEST - 1]
    padded = some_padding(2, n) if pads else None
    assert_equal_with_gradients(layer, rule, tokens(2, n, WIDTH), padded=padded)


@pytest.mark.parametrize("name", ["t5", "t5_buckets", "deberta_buckets", "xl"])
def test_longer_than_the_buckets_are_exact(name: str) -> None:
    layer = RelativeAttention(WIDTH, HEADS, encoding=make(name), dtype=torch.float64)
    randomise(layer)
    n = 7
    assert_equal_with_gradients(layer, Rule(FORMULAS[name](layer)), tokens(1, n, WIDTH))


@pytest.mark.parametrize("urpe", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_swin(window: int, urpe: bool) -> None:
    encoding = Swin(HEADS, window, dtype=torch.float64)
    gain = WindowGain(HEADS, window, dtype=torch.float64) if urpe else None
    layer = RelativeAttention(
        WIDTH, HEADS, encoding=encoding, gain=gain, dtype=torch.float64
    )
    randomise(layer)

    def entry(table: Tensor, h: int, i: int, j: int) -> Tensor:
        side = 2 * window - 1
        dx, dy = i // window - j // window, i % window - j % window
        return table.reshape(HEADS, side, side)[h, dx + window - 1, dy + window - 1]

    rule = Rule(
        lambda b, h, i, j, q, k: (
            sqrt_scale(layer) * (q @ k) + entry(encoding.table, h, i, j)
        )
    )
    if gain is not None:
        rule.gain = lambda b, h, i, j: entry(gain.table, h, i, j)
    n = window * window
    padded = some_padding(2, n)
    assert_equal_with_gradients(layer, rule, tokens(2, n, WIDTH), padded=padded)


@pytest.mark.parametrize("urpe", [False, True])
@pytest.mark.parametrize("edges", [False, True])
def test_graphormer(edges: bool, urpe: bool) -> None:
    """A virtual node, the path 1 - 2 - 3 - 4, and node 5 alone."""
    n, steps, features = 6, 2, 3
    distance = torch.tensor([[abs(i - j) for j in range(n)] for i in range(n)])
    distance[:5, 5] = distance[5, :5] = UNREACHABLE
    distance[0, :] = distance[:, 0] = VIRTUAL
    path_edges = tokens(n, n, steps, features, seed=3)
    both = torch.stack([distance, distance.flip(0, 1)])
    graph = Graph(both, torch.stack([path_edges, -path_edges]))
    encoding = Graphormer(
        HEADS, 3, edge_dim=features if edges else 0, max_steps=steps, dtype=torch.float64
    )
    gain = GraphGain(HEADS, 3, dtype=torch.float64) if urpe else None
    layer = RelativeAttention(
        WIDTH, HEADS, encoding=encoding, gain=gain, dtype=torch.float64
    )
    randomise(layer)

    def score(b: int, h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        length = int(both[b, i, j])
        total = sqrt_scale(layer) * (q @ k) + encoding.table[h, 2 + length]
        if encoding.edge_table is not None and length > 0:
            assert graph.path_edges is not None
            used = min(length, steps)
            for t in range(used):
                x_e = graph.path_edges[b, i, j, t]
                total = total + x_e @ encoding.edge_table[t, :, h] / used
        return total

    rule = Rule(score)
    if gain is not None:
        rule.gain = lambda b, h, i, j: gain.table[h, 2 + int(both[b, i, j])]
    padded = torch.zeros(2, n, dtype=torch.bool)
    padded[1, 4] = True
    assert_equal_with_gradients(
        layer, rule, tokens(2, n, WIDTH), padded=padded, graph=graph
    )


def test_alibi_slopes() -> None:
    assert alibi_slopes(1) == (2.0**-8,)
    assert alibi_slopes(8) == tuple(2.0**-h for h in range(1, 9))
    twelve = alibi_slopes(12)
    assert twelve[:8] == alibi_slopes(8)
    assert twelve[8:] == tuple(2.0 ** -(h + 0.5) for h in range(4))


def test_transformer_xl_clips_distances() -> None:
    encoding = TransformerXL(WIDTH, HEADS, max_distance=2, dtype=torch.float64)
    r = encoding.sinusoids(5)  # offsets -4..4
    assert torch.equal(r[:3], r[2].expand(3, -1))
    assert torch.equal(r[6:], r[6].expand(3, -1))
    assert not torch.equal(r[5], r[6])


def test_rotary_depends_on_the_offset_alone() -> None:
    q, k = tokens(1, 1, 9, 8, seed=2), tokens(1, 1, 9, 8, seed=3)
    same_q, same_k = (x[:, :, :1].expand(-1, -1, 9, -1) for x in (q, k))
    turned_q, turned_k = Rotary().rotate(same_q, same_k)
    scores = (turned_q @ turned_k.mT)[0, 0]
    assert (scores[1:, 1:] - scores[:-1, :-1]).abs().max() < 1e-12
    assert scores[0].std() > 1e-2


ANY_LENGTHS = {
    "t5": lambda: T5(HEADS, 12),
    "t5-buckets": lambda: T5(HEADS, buckets=T5Buckets(8, 16)),
    "alibi": lambda: Alibi(HEADS),
    "rotary": Rotary,
    "shaw": lambda: Shaw(HEAD, 12, values=True),
    "deberta": lambda: Deberta(HEADS, HEAD, 12),
    "deberta-buckets": lambda: Deberta(HEADS, HEAD, buckets=LogBuckets(4, 8)),
    "xl": lambda: TransformerXL(WIDTH, HEADS),
    "xl, clipped": lambda: TransformerXL(WIDTH, HEADS, max_distance=3),
}


@pytest.mark.parametrize("name", ANY_LENGTHS)
@pytest.mark.parametrize(
    ("first", "n_q", "n_k"), [(7, 2, 9), (0, 3, 9), (4, 5, 6), (8, 1, 3)]
)
def test_some_queries_and_keys_are_a_part_of_all(
    name: str, first: int, n_q: int, n_k: int
) -> None:
    """Queries from place `first`, the first n_k keys: rows and columns of all 9 tokens.

    In the first case the queries are the last, as with a memory or a key cache.
    """
    encoding = ANY_LENGTHS[name]().double()
    randomise(encoding)
    q, k = tokens(2, HEADS, 9, HEAD, seed=2), tokens(2, HEADS, 9, HEAD, seed=3)
    rows, columns = slice(first, first + n_q), slice(n_k)
    offset = None if first == n_k - n_q else first
    some_q, some_k = q[:, :, rows], k[:, :, columns]
    turned = encoding.rotate(q, k), encoding.rotate(some_q, some_k, first_query=first)
    assert torch.equal(turned[0][0][:, :, rows], turned[1][0])
    assert torch.equal(turned[0][1][:, :, columns], turned[1][1])
    places = torch.arange(n_q + n_k - 1) + first - (n_k - 1)  # the offsets in question
    bias, part = encoding.offset_bias(q), encoding.offset_bias(some_q, n_k, offset)
    assert (bias is None) == (part is None)
    if bias is not None and part is not None:
        assert torch.equal(bias[:, places + 8], part)
    pairs = encoding.pair_bias(q, k, 0.7, None)
    part = encoding.pair_bias(some_q, some_k, 0.7, None, offset)
    assert (pairs is None) == (part is None)
    if pairs is not None and part is not None:
        assert (pairs[:, :, rows, columns] - part).abs().max() < 1e-14
    values, part = encoding.offset_values(9), encoding.offset_values(n_q, n_k, offset)
    assert (values is None) == (part is None)
    if values is not None and part is not None:
        assert torch.equal(values[places + 8], part)


@pytest.mark.parametrize(("n_q", "n_k", "offset"), [(2, 9, None), (3, 5, 4), (1, 2, -3)])
def test_transformer_xl_with_a_memory(n_q: int, n_k: int, offset: int | None) -> None:
    """scale (u . k_j + (q_i + v) . W r_{i-j}), one pair at a time."""
    encoding = TransformerXL(WIDTH, HEADS, dtype=torch.float64)
    randomise(encoding)
    q, k = tokens(1, HEADS, n_q, HEAD, seed=2), tokens(1, HEADS, n_k, HEAD, seed=3)
    found = encoding.pair_bias(q, k, 0.7, None, offset)
    assert found is not None
    places = torch.arange(0, WIDTH, 2).double() / WIDTH
    for h, i, j in itertools.product(range(HEADS), range(n_q), range(n_k)):
        angle = (i + (n_k - n_q if offset is None else offset) - j) * 10000.0**-places
        r = encoding.position_proj(torch.cat([angle.sin(), angle.cos()]))
        r = r[h * HEAD : (h + 1) * HEAD]
        wanted = 0.7 * (encoding.u[h] @ k[0, h, j] + (q[0, h, i] + encoding.v[h]) @ r)
        assert (found[0, h, i, j] - wanted).abs() < 1e-13


@pytest.mark.parametrize("offset", [None, 0, 3])
def test_gains_of_some_queries_and_keys(offset: int | None) -> None:
    for gain in (ToeplitzGain(2, 12), HeadGain(2)):
        randomise(gain)
        first = 9 - 4 if offset is None else offset
        wanted = gain.matrix(12)[:, :, first : first + 4, :9]
        assert torch.equal(gain.matrix(4, 9, offset=offset), wanted)
        vector = gain.offset_gain(4, 9, offset)
        if vector is not None:
            assert torch.equal(toeplitz(vector, 4, 9)[None], wanted)
