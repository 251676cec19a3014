"""Patterns without the future: their sets, their routes, their densities, the verdict."""

import json

import numpy as np
import pytest
import torch

from everyformer import check, patterns
from everyformer.errors import PatternError
from everyformer.ops.sparse_attention.pieces import Band, BlockLists, Edges, Listed
from everyformer.ops.sparse_attention.rectangles import rectangles
from everyformer.ops.sparse_attention.routes import pieces_of
from everyformer.patterns import (
    Blocks,
    Columns,
    Gathered,
    Part,
    Past,
    Pattern,
    Rows,
    Segments,
    Stride,
    Union,
    Window,
    WindowGlobal,
    past_of,
)
from everyformer.patterns.receptive_fields import deaf_to_the_last
from everyformer.verdict import Verdict

N = 23
SOME = {
    "dense": patterns.dense(N),
    "causal": patterns.causal(N),
    "window": patterns.window(N, 3),
    "strided": patterns.strided(N, 5),
    "strided, union": patterns.strided(N, 5).union(),
    "fixed": patterns.fixed(N, 4),
    "fixed, union": patterns.fixed(N, 4, repaired=True).union(),
    "star": patterns.star(N, 2),
    "a wide star": patterns.star(N, 9),
    "a star of three": patterns.star(3),
    "one token": patterns.star(1),
    "bare star": patterns.bare_star(N),
    "window and global": patterns.window_global(N, 2, (0, 7, 22)),
    "bigbird": patterns.big_bird(N, 3, 2, 1),
    "blocks": patterns.big_bird_blocks(40, 16, 3, 0, 1),
    "blocks without their own": Pattern("", (Blocks(40, 16, ((0, 1), (0,), (1, 2))),)),
    "small blocks": patterns.big_bird_blocks(N, 4),
    "ring": patterns.ring(N),
    "log-sparse": patterns.log_sparse(N),
    "dilated": patterns.dilated(N, 2, (1, 3)),
    "dilated, union": patterns.dilated(N, 2, (1, 3)).union(),
    "axial": patterns.axial(4, 5),
    "random": patterns.random(N, 4),
    "relabelled": patterns.relabelled(patterns.star(N, 2), (*range(1, N), 0)),
    "a union of unions": patterns.union(
        patterns.strided(N, 5).union(), patterns.fixed(N, 7), patterns.random(N, 2)
    ),
    "a union with a star": patterns.union(patterns.star(N, 2), patterns.fixed(N, 7)),
}


def pairs_of(part: Part) -> np.ndarray:
    """How often the pieces of a part count every pair."""
    n = part.n
    found = torch.zeros(n + 1, n + 1, dtype=torch.long)
    for one in rectangles(pieces_of(part), n, 2**20, torch.device("cpu")):
        query, key = torch.broadcast_tensors(one.queries[:, :, None], one.keys[:, None, :])
        counts = torch.ones_like(query) if one.hidden is None else (~one.hidden).long()
        found.index_put_((query, key), counts, accumulate=True)
    return found[:n, :n].numpy()


@pytest.mark.parametrize("name", SOME)
def test_the_past_of_every_pattern(name: str) -> None:
    """A_k without later tokens, each pair in one piece, and twice is as good as once."""
    pattern = SOME[name]
    past = pattern.causal_part()
    assert past.p == pattern.p
    for part, before in zip(past.parts, pattern.parts, strict=True):
        wanted = np.tril(before.mask())
        assert np.array_equal(part.mask(), wanted)
        assert np.array_equal(pairs_of(part), wanted)
        assert part.is_causal
        assert part.connections == wanted.sum()
    assert past.causal_part() == past
    assert Pattern.from_json(json.loads(json.dumps(past.to_json()))) == past
    assert (past is pattern) == (name == "causal")
    assert np.array_equal(
        past.union().parts[0].mask(), pattern.union().causal_part().parts[0].mask()
    )


def test_fast_routes_are_kept() -> None:
    """Nothing is listed pair by pair where the two-sided pattern is not."""
    n = 300
    for pattern in (
        patterns.window(n, 9),
        patterns.dense(n),
        patterns.strided(n, 16),
        patterns.strided(n, 16).union(),
        patterns.fixed(n, 16, repaired=True),
        patterns.fixed(n, 16).union(),
        patterns.window_global(n, 9, (0, 100)),
        patterns.dilated(n, 3, (1, 4)),
        patterns.axial(15, 20),
    ):
        for part in pattern.causal_part().parts:
            assert all(isinstance(piece, Band | Listed) for piece in pieces_of(part))
    relay = pieces_of(patterns.window_global(n, 9).causal_part().parts[0])
    assert [type(piece) for piece in relay] == [Band, Listed]  # which hears nobody else
    (blocks,) = pieces_of(patterns.big_bird_blocks(n, 16).causal_part().parts[0])
    assert isinstance(blocks, BlockLists)
    assert blocks.past
    star = pieces_of(patterns.star(n, 9).causal_part().parts[0])
    assert isinstance(star[0], Band)  # a sliding window
    assert isinstance(star[1], Edges)  # the seam of the ring, and the row of the relay
    assert set(np.flatnonzero(star[1].rows.counts)) == {*range(n - 10, n)}


def test_a_causal_and_a_two_sided_part_may_be_joined() -> None:
    """What only looks like covered must stay: the future of a segment that ends early."""
    past, two_sided = Past(N, Segments(N, 6)), Stride(N, 3)
    columns, window = Past(N, Columns(N, 4, True)), Window(N, 2, 1)
    star = Past(N, WindowGlobal(N, 1, (3,)))
    for parts in (
        (past, two_sided),
        (past, Segments(N, 6)),
        (past, Segments(N, 9), columns),
        (window, columns),
        (window, columns, past),
        (star, two_sided, columns),
    ):
        joined = Union(N, parts)
        wanted = np.any([part.mask() for part in parts], axis=0)
        assert np.array_equal(pairs_of(joined), wanted)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (patterns.strided(256, 16).union(), 12.7),
        (patterns.strided(256, 64).union(), 25.2),
        (patterns.strided(256, 64), 13.0),
        (patterns.strided(256, 152), 26.1),
        (patterns.fixed(256, 16).union(), 12.5),
        (patterns.fixed(256, 64).union(), 26.5),
        (patterns.fixed(256, 64), 13.6),
        (patterns.fixed(256, 128), 25.7),
        (patterns.star(256, 15), 13.2),
        (patterns.star(256, 32), 26.4),
        (patterns.star_first(256, 15), 13.2),
        (patterns.star_first(256, 32), 26.4),
        (patterns.cycle(*(patterns.random(256, 31, k) for k in range(6))), 12.8),
        (patterns.cycle(*(patterns.random(256, 65, k) for k in range(6))), 26.0),
        (patterns.dense(256), 100.0),
    ],
)
def test_densities_at_256_tokens(pattern: Pattern, wanted: float) -> None:
    """Connections among the n (n + 1) / 2 allowed pairs, the mean of the parts."""
    found = pattern.causal_part().connections
    percent = 100 * sum(found) / len(found) / (256 * 257 / 2)
    assert abs(percent - wanted) < 0.1


def test_sets_that_the_past_empties() -> None:
    ahead = Gathered(3, Rows.of_pairs(3, np.array([0, 1, 2]), np.array([1, 0, 2])))
    with pytest.raises(PatternError, match=r"Token 1 of 3 .* later tokens alone \(2\)"):
        Pattern("ahead", (ahead,)).causal_part()
    with pytest.raises(PatternError, match="nothing left for it, nor for"):
        past_of(Gathered(5, Rows.of_pairs(5, np.arange(5), np.array([4, 4, 4, 4, 4]))))
    both = Pattern("both", (Window(3, 1, 1), ahead))
    with pytest.raises(PatternError, match="Token 1 of 3"):
        both.causal_part()
    joined = both.union().causal_part()  # where the other part has something left
    assert np.array_equal(joined.parts[0].mask(), np.tril(both.union().parts[0].mask()))
    with pytest.raises(PatternError, match=r"Past with n=3 of a Gathered .* past_of"):
        Past(3, ahead)
    with pytest.raises(PatternError, match=r"Past with n=4 of a Stride with n=3"):
        Past(4, Stride(3, 2))
    with pytest.raises(PatternError, match="in which all hear themselves"):
        Past(40, SOME["blocks without their own"].parts[0])


@pytest.mark.parametrize("name", ["dense", "strided", "fixed", "star", "bigbird", "random"])
def test_no_causal_pattern_is_universal(name: str) -> None:
    """Token 1 never hears a later one; the two-sided pattern is another matter."""
    report = check(SOME[name].causal_part())
    assert report.verdict is Verdict.REFUTED
    assert report.lp.verdict is report.sup.verdict is Verdict.REFUTED
    assert report.lp.target.startswith("f(X)_1 = x_")


def test_what_a_causal_pattern_may_be_universal_for() -> None:
    """Causal functions at best, and not those if a token never hears the one before it."""
    for name in ("dense", "strided", "fixed, union", "star", "window", "dilated"):
        past = SOME[name].causal_part()
        never = deaf_to_the_last(past)
        heard = reached(past)
        wanted = [k for k in range(1, past.n) if not heard[k, k - 1]]
        assert never == (wanted[0] if wanted else None)
        assert (never is None) == bool((heard == np.tril(np.ones_like(heard))).all())
        reason = check(past).lp.reason
        assert ("at best causal functions" in reason) == (never is None)
        if never is not None:
            assert f"token {never + 1} never hears token {never}, the one" in reason
    assert deaf_to_the_last(patterns.dilated(9, 2, 3).causal_part()) == 1
    assert "causal" not in check(patterns.fixed(14, 4)).lp.reason
    with pytest.raises(PatternError, match="'strided' is not causal"):
        deaf_to_the_last(SOME["strided"])


def reached(pattern: Pattern) -> np.ndarray:
    """Who hears whom after many layers, with the residual connection."""
    step = pattern.union().parts[0].mask() | np.eye(pattern.n, dtype=bool)
    found = step
    for _ in range(6):
        found = found @ found
    return found
