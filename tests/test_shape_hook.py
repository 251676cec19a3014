"""What the hook of conftest.py checks of the functions of everyformer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jaxtyping
import numpy as np
import pytest
from beartype import beartype
from jaxtyping import Float, TypeCheckError

from everyformer.targets.box import Box

Row = Float[np.ndarray, " n"]


def hooked(checked: Any) -> Any:
    return jaxtyping.jaxtyped(typechecker=beartype)(checked)


def plain(x: int) -> str:
    return "" if x else x  # type: ignore[return-value]


def rows(x: Row, y: Row) -> Row:
    return np.concatenate([x, y])


def hidden(x: list["Row"] | None, y: "Row") -> "Callable[[Row], int] | None":
    del x, y


def never_defined(x: "Nowhere") -> None:  # type: ignore[name-defined] # noqa: F821
    del x


@dataclass
class Pair:
    x: Row
    y: Row


@dataclass
class Count:
    x: int
    before: "Count | None" = None


def test_types_are_checked() -> None:
    assert issubclass(TypeCheckError, TypeError)
    checked = hooked(plain)
    assert checked(1) == ""
    for wrong in ("1", 0):  # the argument, and what is returned
        with pytest.raises(TypeCheckError):
            checked(wrong)
    assert hooked(Count)(1, Count(2)).before == Count(2)
    for arguments in (("1",), (1, 2)):
        with pytest.raises(TypeCheckError):
            hooked(Count)(*arguments)


def test_shapes_are_checked() -> None:
    one, two = np.zeros(1), np.zeros(2)
    with pytest.raises(TypeCheckError, match="return value"):
        hooked(rows)(one, one)
    for checked in (rows, Pair):
        with pytest.raises(TypeCheckError, match="parameters"):
            hooked(checked)(one, two)
    assert hooked(hidden)([one], one) is None
    with pytest.raises(TypeCheckError, match="parameters"):
        hooked(hidden)([one], two)


@pytest.mark.parametrize(
    ("function", "wrong"), [(plain, ("1",)), (rows, (np.zeros(1),) * 2)]
)
def test_first_calls_are_checked_and_some_later_ones(function: Any, wrong: Any) -> None:
    checked = hooked(function)
    refused: list[int] = []
    for number in range(1, 201):
        try:
            checked(*wrong)
        except TypeCheckError:
            refused.append(number)
    assert refused == [*range(1, 9), 64, 128, 192]


def test_a_name_that_is_not_there_is_any() -> None:
    assert hooked(never_defined)(1) is None


def test_the_modules_are_hooked() -> None:
    wrong: Any = b"1"
    with pytest.raises(TypeCheckError):
        Box(wrong, (1.0,))
