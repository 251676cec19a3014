"""The table of patterns of the documentation, computed."""

from everyformer.patterns import generators as g
from everyformer.patterns.assumption_1 import assumption_1, shortened
from everyformer.patterns.pattern import Pattern

EXAMPLES: dict[str, Pattern] = {
    "dense(16)": g.dense(16),
    "strided(16, 4)": g.strided(16, 4),
    "strided(16, 4, half_width=3)": g.strided(16, 4, half_width=3),
    "fixed(16, 4)": g.fixed(16, 4),
    "fixed(14, 4)": g.fixed(14, 4),
    "fixed(14, 4, repaired=True)": g.fixed(14, 4, repaired=True),
    "star(16)": g.star(16),
    "star_first(16)": g.star_first(16),
    "bare_star(16)": g.bare_star(16),
    "window(16, 3)": g.window(16, 3),
    "window_global(16, 1)": g.window_global(16, 1),
    "big_bird(16)": g.big_bird(16),
    "big_bird_blocks(64, 4)": g.big_bird_blocks(64, 4),
    "ring(16)": g.ring(16),
    "log_sparse(16)": g.log_sparse(16),
    "log_sparse(16, causal=True)": g.log_sparse(16, causal=True),
    "causal(16)": g.causal(16),
    "dilated(12, 1, 3)": g.dilated(12, 1, 3),
    "dilated(12, 1, (1, 3))": g.dilated(12, 1, (1, 3)),
    "axial(3, 4)": g.axial(3, 4),
    "block_local(16, 4)": g.block_local(16, 4),
    "random(16, 4)": g.random(16, 4),
    "union(strided(16, 4))": g.union(g.strided(16, 4)),
    "union(fixed(16, 4))": g.union(g.fixed(16, 4)),
}


def patterns_table() -> str:
    """A line for each example: p, s, gamma, connections, sparsity and the verdict."""
    heads = ("pattern", "p", "s", "gamma", "connections", "sparsity", "Assumption 1")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for call, pattern in EXAMPLES.items():
        found = assumption_1(pattern)
        failing = [clause.code.removeprefix("A") for clause in found.failing]
        verdict = f"{found.verdict}{': not ' * bool(failing)}{', '.join(failing)}"
        cells = (
            f"`{call}`",
            str(pattern.p),
            "none" if found.hops is None else str(found.hops),
            _gamma(found.path),
            " / ".join(f"{count:,}" for count in pattern.connections),
            " / ".join(f"{100 * share:.1f} %" for share in pattern.sparsity),
            verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _gamma(path: tuple[int, ...] | None) -> str:
    if path is None:
        return "none"
    return "id" if path == tuple(range(len(path))) else shortened(path)
