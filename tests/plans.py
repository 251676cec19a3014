"""What tests look at in plans of methods that have a grid."""

from dataclasses import replace

from everyformer.construct.grid_plan import GridPlan
from everyformer.construct.method import Plan
from everyformer.construct.pipeline import Built
from everyformer.construct.shifts.constants import Constants
from everyformer.construct.shifts.plan import ShiftPlan
from everyformer.construct.table import Table


def grid_plan(plan: Plan) -> GridPlan:
    """The plan, which has a grid."""
    assert isinstance(plan, GridPlan)
    return plan


def constants_of(plan: Plan) -> Constants:
    """The constants of selective shifts."""
    assert isinstance(plan, ShiftPlan)
    return plan.constants


def table_of(built: Built) -> Table:
    """What the network computes: its target at every point that it tells apart."""
    plan = grid_plan(built.plan)
    return plan.tabulate(plan.known(built.target))


def declared(built: Built) -> Built:
    """The same network, of a function known by its declaration alone."""
    return replace(built, target=built.target.untraced(), proved=None)


def as_known(built: Built, way: str) -> Built:
    """The same network, of a function known by its "expression" or its "modulus"."""
    return declared(built) if way == "modulus" else built
