"""What `everyformer construct` tells of a network."""

from typing import Any

from rich.text import Text

from everyformer.certify.certificate import Certificate
from everyformer.certify.hypotheses import conditions
from everyformer.cli.tables import claimed
from everyformer.construct.pipeline import Built


def cost_report(built: Built, proved: Certificate | None) -> dict[str, Any]:
    """What cost.json holds: the plan, the sizes, and the bounds rounded up."""
    certified = None
    if proved is not None:
        bounds = {"real": proved.bound, "float64": proved.float64_bound}
        certified = {
            "verdict": str(proved.verdict),
            "conditional_on": list(conditions(proved.hypotheses)),
            "text": proved.describe(verbose=True),
            **{
                name: None if bound is None else bound.format_value()
                for name, bound in bounds.items()
            },
        }
    return {
        "plan": built.plan.to_json(),
        "cost": built.cost.to_json(),
        "certificate": certified,
        "tried": [str(trial) for trial in built.tried],
    }


def certificate_text(proved: Certificate | None, *, verbose: bool) -> Text:
    """The certificate, or that nothing was certified."""
    if proved is None:
        return Text("No certificate was asked for.")
    return claimed(proved.describe(verbose=verbose))
