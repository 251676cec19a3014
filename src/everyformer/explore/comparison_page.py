"""The page of a comparison: bound against parameters, for every method."""

from typing import Any

from everyformer.construct.comparison import Candidate, Comparison, Point
from everyformer.errors import printable
from everyformer.explore.embedding import finite_float
from everyformer.explore.inline import page_of
from everyformer.page import Page


def comparison_page(found: Comparison) -> Page:
    """The page of a comparison of methods."""
    data = {
        "tol": finite_float(found.tol),
        "p": found.exponent,
        "methods": [_method(candidate) for candidate in found.candidates],
    }
    return page_of("comparison", found.target, data, ", methods compared")


def _method(candidate: Candidate) -> dict[str, Any]:
    """The grids that were planned, and which of them is the cheapest that will do."""
    points, chosen = list(candidate.curve), candidate.chosen
    if chosen is not None and chosen not in points:
        points.append(chosen)
    points.sort(key=lambda point: point.plan.count().parameters)
    return {
        "name": printable(candidate.method.title),
        "refusal": None if candidate.refusal is None else printable(candidate.refusal),
        "chosen": None if chosen is None else points.index(chosen),
        "points": [_point(point) for point in points],
    }


def _point(point: Point) -> dict[str, Any]:
    count = point.plan.count()
    return {
        "label": printable(point.plan.label),
        "grid": point.plan.grid,
        "blocks": finite_float(count.blocks),
        "attention": finite_float(count.attention_layers),
        "parameters": finite_float(count.parameters),
        "bound": finite_float(point.bound.value),
    }
