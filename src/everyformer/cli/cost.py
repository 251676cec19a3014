"""What `everyformer construct` tells of a network."""

from typing import Any

from everyformer.certify.certificate import Certificate
from everyformer.certify.hypotheses import conditions
from everyformer.construct.pipeline import Built


def cost_report(built: Built, proved: Certificate | None) -> dict[str, Any]:
    """What cost.json holds: the plan, the sizes, and the bounds rounded up."""
    certified = None
    if proved is not None:
        bounds = {"real": proved.bound, "float64": proved.float64_bound}
        certified = {
            "verdict": str(proved.verdict),
            "conditional_on": list(conditions(proved.hypotheses)),
            "text": str(proved),
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


def certificate_text(proved: Certificate | None) -> str:
    """The certificate, or that nothing is certified."""
    return "No certificate was asked for." if proved is None else str(proved)
