"""Rows of the slides, quoted: complete, with their source, and in the documentation."""

from pathlib import Path

import pytest

from everyformer.experiments.experiment import markdown, number
from everyformer.experiments.quoted import TABLES, quoted

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"


def quoted_table(table: int) -> str:
    """A table for a document: a model in each row, a column for each quantity."""
    rows = quoted(table)
    quantities = list(dict.fromkeys(row["cell"]["quantity"] for row in rows))
    models: dict[str, list[str]] = {}
    for row in rows:
        cells = models.setdefault(
            row["cell"]["model"], [row.get("parameters", ""), *[""] * len(quantities)]
        )
        deviation = row.get("standard_deviation")
        told = number(row["paper"]) + ("" if deviation is None else f" ± {deviation}")
        cells[1 + quantities.index(row["cell"]["quantity"])] = told
    headings = ["model", "parameters", *quantities]
    return markdown(headings, [[model, *cells] for model, cells in models.items()])


def test_rows_are_those_of_the_slides() -> None:
    """Counts, and numbers by which a slip would be seen: sums over the tables."""
    assert [len(quoted(table)) for table in TABLES] == [11, 21, 10]
    sums = [sum(row["paper"] for row in quoted(table)) for table in TABLES]
    assert sums == pytest.approx([372.4, 3.836, 1.4246])
    for table in TABLES:
        for row in quoted(table):
            assert row["source"].startswith(
                f"Luo et al. 2022 (URPE), slides, Table {table}"
            )
            assert not row["valid"], "nothing of it is reproduced"
            assert row["target"] is None
    own = [row for row in quoted(2) if "URPE" in row["cell"]["model"]]
    assert [row["parameters"] for row in own] == ["491,737"] * 2


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(KeyError, match="no 4"):
        quoted(4)


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_the_rows(table: int) -> None:
    assert quoted_table(table) in PAGE.read_text()
