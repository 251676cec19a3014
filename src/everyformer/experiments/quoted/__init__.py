"""Rows of the tables of Luo et al. 2022 as context: quoted from the slides, not run."""

from collections.abc import Mapping
from typing import Any

from everyformer.experiments.expected import load_expected
from everyformer.papers import LUO2022, implements

TABLES = {1: "WikiText-103", 2: "ZINC", 3: "PCQM4M"}


@implements(LUO2022, "Table 1", "Table 2", "Table 3")
def quoted(table: int) -> list[Mapping[str, Any]]:
    """The rows of a table, in the order of the slides.

    Raises:
        KeyError: If the slides have no table of that number.

    Example:
        >>> [row["paper"] for row in quoted(1)[-2:]]
        [22.4, 23.2]
    """
    if table not in TABLES:
        msg = f"The slides have the tables {', '.join(map(str, TABLES))}, and no {table}."
        raise KeyError(msg)
    entries = load_expected(__name__).entries
    return [entry for entry in entries if entry["cell"]["table"] == table]
