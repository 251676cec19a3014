"""Tables of results: numbers in their units, what is missing, and why a row failed."""

import pytest

from everyformer.bench import attention
from everyformer.bench.tables import table_of

COLUMNS = {"name": "{name}", "n, d": "{n}, {d}", "s": "{s:.2f}", "KiB": "{bytes:KiB,.1f}"}
FULL = {"name": "first", "n": 2, "d": 1, "s": 0.5, "bytes": 2**21}


def test_cells_are_formatted_in_the_names_of_a_row() -> None:
    empty = {"name": "second", "n": 3, "s": None}
    shown = table_of("all", [FULL, empty], COLUMNS, left=["name"])
    cells = [list(column.cells) for column in shown.columns]
    assert cells == [["first", "second"], ["2, 1", ""], ["0.50", ""], ["2,048.0", ""]]
    assert [column.justify for column in shown.columns] == ["left", *["right"] * 3]
    assert [column.header for column in shown.columns] == list(COLUMNS)
    assert shown.title == "all"


def test_a_row_that_failed_says_why_after_its_head() -> None:
    failed = FULL | {"failed": "out of memory"}
    shown = table_of("", [failed], COLUMNS, head=2, longest=6)
    assert [list(column.cells) for column in shown.columns] == [
        ["first"], ["2, 1"], ["out of"], [""],
    ]  # fmt: skip


def test_a_format_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="format code"):
        table_of("", [FULL], {"name": "{name:.2f}"})


def test_nothing_is_compared_with_ours_where_it_failed() -> None:
    shape = {"batch": 1, "n": 64, "heads": 2, "size": 8, "causal": False}
    ours = shape | {"name": "ours", "failed": "out of memory"}
    eager = shape | {"name": "eager", "both_ms": 2.0, "peak_bytes": None}
    shown = attention.table({"rows": [ours, eager]})
    assert list(shown.columns[-1].cells) == ["", ""]
    assert list(shown.columns[3].cells) == ["out of memory", "2.000"]
