"""The public surface is a list under test."""

import everyformer as ef


def test_public_names() -> None:
    assert sorted(ef.__all__) == [
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
        "register",
        "restore",
        "speed_up",
        "targets",
        "verify",
    ]
    assert all(hasattr(ef, name) for name in ef.__all__)


def test_gallery_names() -> None:
    assert set(ef.targets.GALLERY) <= set(vars(ef.targets))
    assert len(ef.targets.GALLERY) == 10
