"""Turns a function into Transformer weights; the theory of expressivity, executable."""

from everyformer import targets
from everyformer.certify.bound import Bound
from everyformer.certify.certificate import Certificate
from everyformer.certify.prove import Computing
from everyformer.certify.verify import Verification, verify
from everyformer.checks.contextual_mapping import ContextualMapping, contextual_mapping
from everyformer.construct.pipeline import Built, construct
from everyformer.construct.plan import Plan
from everyformer.construct.plan import make_plan as plan
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.network import Network, load
from everyformer.targets.target import Target
from everyformer.verdict import Verdict

__all__ = [
    "ArchitectureSpec",
    "Bound",
    "Built",
    "Certificate",
    "Computing",
    "ContextualMapping",
    "Network",
    "Plan",
    "Target",
    "Verdict",
    "Verification",
    "construct",
    "contextual_mapping",
    "load",
    "plan",
    "targets",
    "verify",
]
