"""The metric of SQuAD: values written by hand from the rules of the official script."""

import pytest

from everyformer.data.squad.metric import judge, normalised


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The  Cat's!", "cats"),
        ("a", ""),
        ("an\tapple  a day", "apple day"),
        ("A.B.C.", "abc"),
        ("a.b", "ab"),
        ("theatre another", "theatre another"),
        ("1990–2000", "1990–2000"),
        ("1990-2000", "19902000"),
        ("the-end", "theend"),
        ("«The» end", "« » end"),
        ("É", "é"),
    ],
)
def test_what_is_compared(text: str, left: str) -> None:
    assert normalised(text) == left


@pytest.mark.parametrize(
    ("said", "answers", "f1", "exact"),
    [
        ("The  Cat's!", ["cats"], 1, 1),
        ("the", ["a"], 0, 1),
        ("", ["the"], 0, 1),
        ("", ["cat"], 0, 0),
        ("cat", ["dog"], 0, 0),
        ("the old cat", ["cat"], 2 / 3, 0),
        ("a b c", ["b c d"], 0.8, 0),  # "a" is an article: 2 of 2 said, 2 of 3 true
        ("b b c", ["b c c"], 2 / 3, 0),  # as multisets: b and c are common
        ("b b", ["b"], 2 / 3, 0),
        ("x y", ["z", "x", "x y w"], 0.8, 0),
        ("x y", ["X, Y.", "x"], 1, 1),
        ("1990–2000", ["1990-2000"], 0, 0),
        (None, ["the"], 0, 0),
    ],
)
def test_crafted_answers(
    said: str | None, answers: list[str], f1: float, exact: float
) -> None:
    found = judge(said, answers)
    assert found[0] == pytest.approx(f1, abs=1e-12)
    assert found[1] == exact


def test_the_best_answer_counts_for_each_number_apart() -> None:
    """Exact by one answer ("the" against "a"), F1 by another."""
    assert judge("the", ["a"]) == (0, 1)
    assert judge("the x", ["x y", "an x"]) == (1, 1)
