"""Turns a function into Transformer weights; the theory of expressivity, executable."""

from everyformer import patterns, targets
from everyformer.certify.bound import Bound
from everyformer.certify.certificate import Certificate
from everyformer.certify.proof import Computing
from everyformer.certify.verify import Verification, verify
from everyformer.checks.contextual_mapping import ContextualMapping, contextual_mapping
from everyformer.checks.report import Report, check
from everyformer.construct.comparison import Comparison
from everyformer.construct.memory import Memory, memorise
from everyformer.construct.method import Method, Plan
from everyformer.construct.pipeline import Built, compare, construct, plan
from everyformer.construct.registry import (
    Averaging,
    Cheapest,
    Compile,
    Partition,
    SelectiveShifts,
    SparseShifts,
    UrpeShifts,
)
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.network import Network, load
from everyformer.targets.target import Target
from everyformer.verdict import Verdict

__all__ = [
    "ArchitectureSpec",
    "AttentionSpec",
    "Averaging",
    "Bound",
    "Built",
    "Certificate",
    "Cheapest",
    "Comparison",
    "Compile",
    "Computing",
    "ContextualMapping",
    "Memory",
    "Method",
    "Network",
    "Partition",
    "Plan",
    "Report",
    "SelectiveShifts",
    "SparseShifts",
    "Target",
    "UrpeShifts",
    "Verdict",
    "Verification",
    "check",
    "compare",
    "construct",
    "contextual_mapping",
    "load",
    "memorise",
    "patterns",
    "plan",
    "targets",
    "verify",
]
