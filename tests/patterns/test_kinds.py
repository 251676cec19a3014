"""Parts: sets as defined in the paper, connections in closed form, storage."""

import json
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer import patterns as ps
from everyformer.errors import PatternError

SIZES = st.integers(1, 30)
untyped: Any = ps
"""The same for arguments of wrong types."""


def sets(part: ps.Part) -> list[set[int]]:
    """A_k for k = 1..n, 1-based as in the paper."""
    return [{int(j) + 1 for j in part.heard(k)} for k in range(part.n)]


def cut_into(indptr: list[int]) -> dict[str, object]:
    """The JSON of listed sets with one entry, and these bounds of two sets."""
    return listing({"indptr": indptr, "indices": [0]})


def listing(listed: object) -> dict[str, Any]:
    """The JSON of these sets of two tokens."""
    return {"kind": "Gathered", "n": 2, "listed": listed}


def pattern_of(**changed: object) -> dict[str, Any]:
    """The JSON of a pattern, with something else in it."""
    return ps.strided(4, 2).to_json() | changed


def families(n: int, w: int, h: int, k: int) -> list[ps.Pattern]:
    return [
        ps.dense(n),
        ps.causal(n),
        ps.strided(n, w),
        ps.strided(n, w, h),
        ps.fixed(n, w),
        ps.fixed(n, w, repaired=True),
        ps.star(n, w),
        ps.bare_star(n),
        ps.window(n, h),
        ps.window_global(n, h, k),
        ps.window_global(n, h, sorted({k - 1, n - 1})),
        ps.big_bird(n, 2 * (h // 2) + 1, k, 1, seed=w),
        ps.big_bird_blocks(n, w, 3, 1, 1, seed=h),
        ps.ring(n),
        ps.log_sparse(n),
        ps.log_sparse(n, causal=True),
        ps.dilated(n, h, w),
        ps.dilated(n, h, (1, w)),
        ps.axial(w, h),
        ps.block_local(n, w),
        ps.random(n, k, seed=h),
        ps.strided(n, w).union(),
    ]


@pytest.mark.parametrize("family", range(22))
@given(SIZES, st.integers(1, 12), st.integers(1, 12), st.data())
@settings(max_examples=5, deadline=None)
def test_connections_rows_masks_and_json_agree(
    family: int, n: int, w: int, h: int, data: st.DataObject
) -> None:
    pattern = families(n, w, h, data.draw(st.integers(1, n)))[family]
    for part in pattern.parts:
        rows, mask = part.rows(), part.mask()
        assert part.connections == len(rows.indices) == mask.sum()
        assert part.sparsity == 1 - mask.mean()
        assert part.self_loops == mask.diagonal().all()
        for k in range(part.n):
            assert part.heard(k).tolist() == np.flatnonzero(mask[k]).tolist()
    again = ps.Pattern.from_json(json.loads(json.dumps(pattern.to_json())))
    assert again == pattern
    assert again.path == pattern.path
    assert hash(again) == hash(pattern)
    union = pattern.union().parts[0].mask()
    assert (union == np.any([part.mask() for part in pattern.parts], axis=0)).all()


@given(SIZES, st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_sets_are_those_of_the_paper(n: int, w: int) -> None:
    all_tokens = range(1, n + 1)

    def within(tokens: set[int]) -> set[int]:
        return tokens & set(all_tokens)

    window, stride = (sets(part) for part in ps.strided(n, w).parts)
    segments, columns = (sets(part) for part in ps.fixed(n, w).parts)
    repaired = sets(ps.fixed(n, w, repaired=True).parts[1])
    star = sets(ps.star(n, w).parts[0])
    multiples = {w * t for t in range(1, n + 1)}
    assert star[n - 1] == set(all_tokens)
    for k in all_tokens:
        assert window[k - 1] == within(set(range(k - -(-w // 2), k + w // 2 + 1)))
        assert stride[k - 1] == within({k + w * t for t in range(-n, n + 1)})
        end = -(-k // w) * w
        assert segments[k - 1] == within(set(range(end - w + 1, end + 1)))
        assert columns[k - 1] == within({k} | multiples)
        assert repaired[k - 1] == within({k, n} | multiples)
        if k < n:
            ring = {(i - 1) % (n - 1) + 1 for i in range(k - w, k + w + 1)}
            assert star[k - 1] == {n} | ring


def test_axial_is_rows_then_columns() -> None:
    rows, columns = ps.axial(3, 4).parts
    assert sets(rows)[5] == {5, 6, 7, 8}
    assert sets(columns)[5] == {2, 6, 10}
    assert ps.axial(3, 4).connections == (48, 36)


def test_parts_of_blocks_cycle() -> None:
    pattern = ps.strided(9, 3)
    assert [pattern.part_of(block) for block in range(4)] == [*pattern.parts] * 2
    with pytest.raises(PatternError, match="block=-1"):
        pattern.part_of(-1)


def test_large_patterns_cost_nothing_until_asked() -> None:
    pattern = ps.strided(1 << 20, 1 << 10)
    assert pattern.connections[1] == (1 << 20) * (1 << 10)
    assert not any("_rows" in vars(part) for part in pattern.parts)
    with pytest.raises(PatternError, match="1,099,511,627,776 entries"):
        pattern.parts[0].mask()
    with pytest.raises(PatternError, match="1,073,741,824 connections"):
        pattern.parts[1].rows()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ps.dense(0), "n=0"),
        (lambda: ps.strided(8, 0), "width=0.*at least 1"),
        (lambda: ps.strided(8, 2, 0), "half_width=0"),
        (lambda: ps.window(8, -1), "half_width=-1"),
        (lambda: ps.fixed(0, 0), "n=0"),
        (lambda: ps.dilated(8, 1, 0), "dilation=0"),
        (lambda: ps.dilated(8, 1, ()), "empty"),
        (lambda: ps.axial(0, 3), "rows=0"),
        (lambda: ps.random(4, 5), "5 different keys cannot be drawn from n=4"),
        (lambda: ps.big_bird(8, window=2), r"odd\. Use 1 or 3"),
        (lambda: ps.window_global(8, 1, (8,)), r"token 8 \(0-based\).*0\.\.7 \(0-based\)"),
        (lambda: ps.window_global(8, 1, (1, 1)), "name each token once"),
        (lambda: ps.relabelled(ps.ring(3), (0, 1, 1)), "not a permutation"),
        (lambda: ps.cycle(ps.ring(3), ps.ring(4)), r"different n, \[3, 4\]"),
        (lambda: ps.Blocks(8, 4, ((0,), (2,))), "2 blocks: 2 rows are needed"),
        (lambda: ps.ring(3).draw(3), "columns=4"),
        (lambda: ps.by_name("strided", n=8), "width is missing.*n, width, half_width=None"),
        (lambda: ps.by_name("ring", n=8, width=2), "no parameter width"),
        (lambda: ps.by_name("rings", n=8), "no pattern 'rings'.*ring"),
        (lambda: ps.Part.from_json({"kind": "Rope", "n": 3}), "not a part of a pattern"),
        (lambda: ps.Part.from_json({"kind": "Dense"}), "not a part of a pattern"),
        (lambda: ps.Part.from_json(cut_into([0, 5, 1])), "bounds must ascend from 0"),
        (lambda: ps.Part.from_json(cut_into([0, 1, 2])), "bounds must ascend from 0"),
        (lambda: ps.random(4, 2, -1), "seed=-1"),
        (lambda: ps.big_bird_blocks(8, 2, seed=-1), "seed=-1"),
        (lambda: ps.Pattern.from_json({}), "name, parts and a path"),
    ],
)
def test_refusals(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(PatternError, match=text):
        make()


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: untyped.Pattern.from_json([]), "name, parts and a path"),
        (
            lambda: untyped.Pattern.from_json(pattern_of(name=3)),
            "name of a pattern is a text, not 3",
        ),
        (lambda: untyped.Pattern.from_json(pattern_of(path=3)), "The path is 3: several"),
        (
            lambda: untyped.Pattern.from_json(pattern_of(path=[0, 1.5])),
            r"\(0, 1\.5\).*whole",
        ),
        (
            lambda: untyped.Pattern.from_json(pattern_of(parts="Dense")),
            "Dense is not a list of",
        ),
        (lambda: untyped.Pattern.from_json(pattern_of(parts=[3])), "3 is not a part of"),
        (
            lambda: untyped.Part.from_json({"kind": ["Dense"], "n": 3}),
            "not a part of a pattern",
        ),
        (
            lambda: untyped.Part.from_json({"kind": "Past", "n": 3, "part": 4}),
            "4 is not a part",
        ),
        (
            lambda: untyped.Part.from_json({"kind": "Union", "n": 3, "parts": 4}),
            "4 is not a li",
        ),
        (
            lambda: untyped.Part.from_json(listing(7)),
            "indptr=None: a list of whole numbers",
        ),
        (lambda: untyped.Part.from_json(cut_into([0, 2**70, 1])), "indptr=.*whole numbers"),
        (
            lambda: untyped.Part.from_json(listing({"indptr": [[0], 1], "indices": [0]})),
            "indptr=.*whole numbers",
        ),
        (
            lambda: untyped.Part.from_json(
                listing({"indptr": [0, 1, 2], "indices": [0, 2**31]})
            ),
            "indices=.*whole numbers",
        ),
        (
            lambda: untyped.Part.from_json(
                listing({"indptr": [0, 1, 2], "indices": [0, 1.5]})
            ),
            "indices=.*whole numbers",
        ),
        (lambda: untyped.WindowGlobal(4, 1, (1.5,)), r"\(1\.5\).*whole numbers"),
        (lambda: untyped.WindowGlobal(4, 1, 2), "global tokens is 2: several"),
        (lambda: untyped.Blocks(4, 2, ((0.5,), (1,))), r"\(0\.5\).*whole numbers"),
        (lambda: untyped.Blocks(4, 2, 3), "0 rows, but n=4"),
        (lambda: untyped.Columns(4, 2, 7), "last=7: True or False"),
    ],
)
def test_parts_of_other_types_are_refused(make: object, text: str) -> None:
    """What files say: no number is rounded in silence, and nothing else is raised."""
    assert callable(make)
    with pytest.raises(PatternError, match=text):
        make()


def eye(n: int) -> np.ndarray:
    return np.eye(n, dtype=bool)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: ps.from_edges(4, [(0, 1), (1, 2), (2, 0)]),
            r"token 3 \(0-based\).*isolated",
        ),
        (lambda: ps.from_edges(3, [(1, 2)], first=1), r"token 3 \(1-based\)"),
        (lambda: ps.from_edges(2, [(0, 1), (1, 0), (0, 1)]), r"\(0, 1\) \(0-based\).*once"),
        (lambda: ps.from_edges(2, [(0, 2)]), r"Edge 1 is \(0, 2\).*0\.\.1 \(0-based\)"),
        (lambda: ps.from_edges(2, [(0, 1)], first=1), r"tokens are 1\.\.2 \(1-based\)"),
        (lambda: ps.from_edges(2, []), "empty"),
        (lambda: ps.from_edges(0, [(0, 0)]), "n=0"),
        (
            lambda: ps.from_edges(2, [(0, 1)]),
            r"Token 1 of 2 \(1-based\) attends to no token",
        ),
        (lambda: ps.from_masks(np.ones((2, 3), dtype=bool)), r"shape \(2, 3\): a square"),
        (lambda: ps.from_masks(np.ones((2, 2))), "dtype float64.*mask != 0"),
        (lambda: ps.from_masks(np.zeros((0, 0), dtype=bool)), "n >= 1"),
        (lambda: ps.from_masks([]), "empty"),
        (lambda: ps.from_masks([eye(2), eye(3)]), r"different n, \[2, 3\]"),
        (lambda: ps.from_masks(~eye(1)), "attends to no token"),
        (lambda: ps.from_graph(nx.Graph([("a", "b")])), "convert_node_labels_to_integers"),
        (lambda: ps.from_graph(nx.MultiDiGraph([(0, 1), (0, 1)])), "repeated"),
        (lambda: ps.from_graph([(0, 1)]), "not list.*from_edges"),
    ],
)
def test_refusals_of_a_users_pattern(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(PatternError, match=text):
        make()


def test_users_patterns() -> None:
    ring = ps.ring(5).parts[0].mask()
    edges = [(k, (k + 1) % 5) for k in range(5)]
    assert (ps.from_edges(5, edges, self_loops=True).parts[0].mask() == ring).all()
    shifted = [(j + 1, k + 1) for j, k in edges]
    assert (
        ps.from_edges(5, shifted, self_loops=True, first=1).parts[0].mask() == ring
    ).all()
    assert (ps.from_masks(ring).parts[0].mask() == ring).all()
    directed = ps.from_graph(nx.DiGraph(edges), self_loops=True)
    assert (directed.parts[0].mask() == ring).all()
    both = ps.from_graph(nx.Graph(edges), self_loops=True).parts[0].mask()
    assert (both == (ring | ring.T)).all()
    assert ps.from_masks(np.stack([ring, ring.T])).p == 2


@pytest.mark.unhooked
def test_masks_may_be_lists_and_tensors() -> None:
    ring = untyped.ring(3).parts[0].mask()
    for masks in (ring.tolist(), torch.tensor(ring), [ring.tolist()], [torch.tensor(ring)]):
        assert untyped.from_masks(masks).parts[0].rows() == untyped.ring(3).parts[0].rows()
    assert untyped.from_masks(torch.tensor(np.stack([ring, ring.T]))).p == 2


@pytest.mark.unhooked
def test_whole_numbers_of_numpy_are_numbers_and_floats_are_not() -> None:
    five = np.int64(5)
    for pattern, same in (
        (untyped.star(five), untyped.star(5)),
        (untyped.strided(five, np.int32(2)), untyped.strided(5, 2)),
        (untyped.dilated(five, 1, np.int64(2)), untyped.dilated(5, 1, 2)),
        (untyped.window_global(five, 1, [np.int64(3)]), untyped.window_global(5, 1, [3])),
        (
            untyped.from_edges(five, np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]])),
            None,
        ),
    ):
        assert json.dumps(pattern.to_json())  # numpy's own numbers are no JSON
        assert same is None or pattern == same
    for wrong in (
        lambda: untyped.from_edges(3, [(0.5, 1)]),
        lambda: untyped.from_edges(3, np.array([[0.0, 1.0]])),
        lambda: untyped.star(5.0),
        lambda: untyped.dilated(9, 1, 2.0),
        lambda: untyped.window_global(9, 1, [0.5]),
        lambda: untyped.window_global(9, 1, "12"),
        lambda: untyped.relabelled(untyped.ring(3), (0.2, 1, 2)),
        lambda: untyped.assumption_1(untyped.ring(3), (0.9, 1, 2)),
    ):
        with pytest.raises(PatternError, match="whole numbers"):
            wrong()
    with pytest.raises(PatternError, match=r"\(0, 1, 2\): two numbers \(j, k\)"):
        untyped.from_edges(3, [(0, 1, 2)])
    with pytest.raises(PatternError, match=r"type Window among them.*Pattern\(name"):
        untyped.union(untyped.Window(4, 1, 1))


def test_relabelled_renames_tokens_and_path() -> None:
    ring = ps.relabelled(ps.ring(4), (2, 0, 3, 1))
    assert sets(ring.parts[0])[2] == {3, 2}  # token 1 of the ring, which hears token 4
    assert ring.path == (2, 0, 3, 1)


def test_drawings() -> None:
    assert ps.causal(4).draw().splitlines()[1:3] == ["█▄", "███▄"]
    odd = ps.dense(3).draw().splitlines()
    assert odd[:3] == ["A^1", "███", "▀▀▀"]
    braille = ps.dense(16).draw(8).splitlines()
    assert braille[1:5] == ["⣿" * 8] * 4
    shaded = ps.block_local(64, 32).draw(8).splitlines()
    assert shaded[1:5] == ["████", "████", "    ████", "    ████"]
    assert "a few to all" in shaded[-1]
    figure = ps.strided(900, 30).picture()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"A^{place + 1}: {count:,} connections"
        for place, count in enumerate(ps.strided(900, 30).connections)
    ]


@given(st.integers(2, 40), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_random_keys_are_different_and_seeded(n: int, seed: int) -> None:
    keys = max(1, n // 3)
    pattern = ps.random(n, keys, seed)
    counts = pattern.parts[0].rows().counts
    assert set(counts.tolist()) <= {keys, keys + 1}
    assert pattern == ps.random(n, keys, seed)
