"""Patterns as functions of n: the first tokens of one, and recipes."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from tests.patterns.test_past import SOME, pairs_of

from everyformer import patterns
from everyformer.errors import PatternError
from everyformer.ops.sparse_attention.pieces import Edges
from everyformer.ops.sparse_attention.routes import pieces_of
from everyformer.patterns import Gathered, Pattern, Rows, recipe


@pytest.mark.parametrize("name", SOME)
def test_the_first_tokens_of_every_pattern(name: str) -> None:
    """The leading block, by pieces that count each pair once, two-sided and causal."""
    for pattern in (SOME[name], SOME[name].causal_part()):
        assert pattern.first(pattern.n) is pattern
        for n in {1, pattern.n // 2, pattern.n - 1} - {0}:
            found = pattern.first(n)
            for part, whole in zip(found.parts, pattern.parts, strict=True):
                wanted = whole.mask()[:n, :n]
                assert np.array_equal(part.mask(), wanted)
                assert np.array_equal(pairs_of(part), wanted)
                listed = any(isinstance(piece, Edges) for piece in pieces_of(whole))
                fast = all(not isinstance(piece, Edges) for piece in pieces_of(part))
                assert listed or fast or whole.kind == "Star"


def test_first_tokens_that_do_not_exist_or_hear_nobody() -> None:
    with pytest.raises(PatternError, match=r"first 24 tokens .* Window with n=23"):
        patterns.window(23, 2).first(24)
    rows = Rows.of_pairs(4, np.array([0, 1, 2, 3]), np.array([0, 3, 2, 3]))
    later = Pattern("later", (Gathered(4, rows),))
    with pytest.raises(PatternError, match=r"Token 2 of 4 .* than the first 3 alone \(4\)"):
        later.first(3)
    blocks = Pattern("blocks", (patterns.Blocks(8, 2, ((3,), (1,), (2,), (3,))),))
    with pytest.raises(PatternError, match=r"Token 1 of 8 .* than the first 4 alone"):
        blocks.first(4)
    joined = patterns.union(later, patterns.window(4, 1)).parts[0].mask()
    first = patterns.union(later, patterns.window(4, 1)).first(3).parts[0].mask()
    assert np.array_equal(first, joined[:3, :3])


@pytest.mark.parametrize(("n", "width"), [(30, 1), (31, 4), (9, 3), (4, 1), (1, 1)])
def test_the_star_with_its_relay_in_front(n: int, width: int) -> None:
    """The star with its tokens renamed; causal, everybody hears the relay."""
    found = patterns.star_first(n, width)
    renamed = patterns.relabelled(patterns.star(n, width), (*range(1, n), 0))
    assert np.array_equal(found.parts[0].mask(), renamed.parts[0].mask())
    assert np.array_equal(pairs_of(found.parts[0]), renamed.parts[0].mask())
    assert found.causal_part().parts[0].mask()[:, 0].all()


def test_a_recipe_gives_the_pattern_of_each_length() -> None:
    made = recipe("strided", width=4, causal=True)
    assert made == recipe("strided", width=4).causal_part()
    assert made(20) == patterns.strided(20, 4).causal_part()
    for twin in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert twin == made
        assert twin(20) is made(20)
    assert str(recipe("star", width=2, max_len=9, causal=True)) == (
        "star (width=2, causal, max_len=9)"
    )
    assert recipe("axial", columns=4)(12) == patterns.axial(3, 4)
    assert recipe("star-first")(6) == patterns.star_first(6)


def test_with_max_len_a_causal_token_hears_the_same_at_every_length() -> None:
    """Also of a random pattern, and of a star, whose relay and seam are its last tokens."""
    for name, given in (("random", {"keys": 9}), ("star", {"width": 2})):
        made = recipe(name, max_len=40, causal=True, **given)
        whole = made(40).parts[0].mask()
        for n in (39, 17, 1):
            assert np.array_equal(made(n).parts[0].mask(), whole[:n, :n])
        anew = recipe(name, causal=True, **given)(17).parts[0].mask()
        assert not np.array_equal(anew, whole[:17, :17])


@pytest.mark.parametrize(
    ("settings", "n", "sentence"),
    [
        ({"name": "stridded"}, 0, "There is no pattern 'stridded'. Choose one of dense"),
        ({"name": "strided"}, 0, "width is missing. It is made from n, width"),
        ({"name": "strided", "w": 4}, 0, "no parameter w, width is missing"),
        ({"name": "star", "n": 4}, 0, "n follows from the number of tokens, leave it out"),
        ({"name": "star", "max_len": 0}, 0, "max_len=0: whole numbers of at least 1"),
        ({"name": "star", "multiple_of": 0}, 0, "multiple_of=0: whole numbers"),
        ({"name": "star", "multiple_of": 8, "max_len": 12}, 0, "n=12 .* 8 or 16"),
        ({"name": "star", "max_len": 12}, 13, "n=13 tokens, .* max_len=12. Give shorter"),
        ({"name": "fixed", "width": 8, "multiple_of": 8}, 12, "n=12 .* Pad to 8 or 16"),
        ({"name": "axial", "columns": 8}, 3, "n=3 .* multiple of 8, .* Pad to 8 and"),
        ({"name": "random", "keys": 9}, 8, "9 different keys cannot be drawn from n=8"),
        ({"name": "star"}, 0, "n=0: whole numbers of at least 1"),
        ({"name": "axial", "columns": 0}, 9, "axial with columns=0: whole numbers"),
        ({"name": "random", "keys": {2}}, 9, r"keys=\{2\} can be changed.*tuple"),
    ],
)
def test_what_has_no_pattern(settings: dict[str, Any], n: int, sentence: str) -> None:
    with pytest.raises(PatternError, match=sentence):
        recipe(**settings)(n)


def test_several_numbers_may_be_a_list() -> None:
    made = recipe("dilated", half_width=1, dilations=[1, 2])
    assert made(9) is recipe("dilated", half_width=1, dilations=(1, 2))(9)
    assert made(9) == patterns.dilated(9, 1, [1, 2])
