"""Follow random modules, and compare all that is said of them with their numbers.

    python tests/adversarial/programs.py --cases 2000 --seed 1

Every fact of every tensor inside a module is tested by its definition (`fact_oracles`).
So is each property that `check` would call PROVED, on the module itself: by permutations,
equal tokens, zeros, and the derivative of every output by every token.
"""

import argparse
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.adversarial.fact_oracles import Violation, check_facts, check_mirror, differs
from tests.adversarial.random_modules import Program, draw_program, sizes, trimmed

from everyformer.checks.following.exporting import taken_apart
from everyformer.checks.following.walk import Followed, Walk
from everyformer.checks.rules import (
    affine_on_equal_tokens,
    causal,
    equal_tokens,
    permutations,
    right_stochastic,
    tokens_apart,
    zero_to_zero,
)

PACKED = 40
"""Programs that are exported together, since every export takes a while to begin."""

PROPERTIES = {
    "EF001": permutations.by_operations,
    "EF002": right_stochastic.by_operations,
    "EF003": equal_tokens.by_operations,
    "EF006": causal.by_operations,
    "EF007": zero_to_zero.by_operations,
    "EF009": tokens_apart.by_operations,
    "EF012": affine_on_equal_tokens.by_operations,
}


class Pack(nn.Module):
    """Some programs as one module."""

    def __init__(self, programs: list[Program], seed: int) -> None:
        super().__init__()
        made = [program.module(seed) for program in programs]
        self.programs = nn.ModuleList(made)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(program(x) for program in self.programs)


@dataclass
class Tally:
    """What was generated and found.

    Attributes:
        programs: That were drawn.
        followed: That were followed to the end.
        claims: Facts of tensors that were compared with numbers.
        proved: How many programs each property was proved of.
        violations: Programs of which something false was said.
        obstacles: Why programs were not followed.
    """

    programs: int = 0
    followed: int = 0
    claims: int = 0
    proved: Counter[str] = field(default_factory=Counter[str])
    violations: list[tuple[Program, str]] = field(default_factory=list[tuple[Program, str]])
    obstacles: Counter[str] = field(default_factory=Counter[str])

    def __str__(self) -> str:
        """The counts, on one line."""
        proved = ", ".join(f"{code} {count}" for code, count in sorted(self.proved.items()))
        return (
            f"{self.programs} programs, {self.followed} followed, {self.claims} facts "
            f"compared; proved: {proved}; programs with a false fact: "
            f"{len(self.violations)}"
        )

    def add(self, other: "Tally") -> None:
        """Count both together."""
        self.programs += other.programs
        self.followed += other.followed
        self.claims += other.claims
        self.proved += other.proved
        self.violations += other.violations
        self.obstacles += other.obstacles


def exported(programs: list[Program], seed: int) -> ExportedProgram:
    """The operations of some programs of one n and d."""
    pack = Pack(programs, seed).double().eval()
    x = torch.zeros(1, programs[0].n, programs[0].d, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return taken_apart(torch.export.export(pack, (x,), strict=False))


def followed(program: ExportedProgram) -> Walk:
    """The facts of all its tensors."""
    walk = Walk(program)
    walk.run()
    return walk


def attack(programs: list[Program], seed: int) -> Tally:
    """Follow programs of one n and d together, and compare with numbers."""
    try:
        walk = followed(exported(programs, seed))
    except Exception as error:
        if len(programs) > 1:
            return _one_by_one(programs, seed)
        first = str(error).strip().splitlines()[0][:80]
        return Tally(1, obstacles=Counter([f"{type(error).__name__}: {first}"]))
    return compare(walk, programs, seed)


def compare(walk: Walk, programs: list[Program], seed: int) -> Tally:
    """Compare what was said of programs with numbers, for two draws of all weights."""
    tally = Tally(len(programs), len(programs))
    found: list[Violation] = []
    for draw in range(2):
        for check in (
            check_facts(walk, seed + draw),
            check_mirror(walk.program, seed + draw),
        ):
            tally.claims += check.claims
            found += check.violations
    if found and len(programs) > 1:
        return _one_by_one(programs, seed)
    graph = walk.program.graph
    outputs: Any = next(node for node in graph.nodes if node.op == "output").args[0]
    for made, output in zip(programs, outputs, strict=True):
        facts = Followed(walk.facts[output.name])
        codes = [code for code, proves in PROPERTIES.items() if proves(facts).holds]
        tally.proved.update(codes)
        wrong = list(false_properties(made, codes, facts, seed))
        wrong += [f"{v.fact} of {v.node}: {v.seen}" for v in found]
        if wrong:
            tally.violations.append((made, "; ".join(wrong[:6])))
    return tally


def _one_by_one(programs: list[Program], seed: int) -> Tally:
    tally = Tally()
    for program in programs:
        tally.add(attack([program], seed))
    return tally


def false_properties(
    program: Program, codes: list[str], facts: Followed, seed: int
) -> Iterator[str]:
    """Properties that are said to hold for all weights, and fail on the module itself."""
    module, n, d = program.module(seed + 1), program.n, program.d
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(1, n, d, generator=source, dtype=torch.float64)
    order = torch.randperm(n, generator=source)
    equal = x[:, :1].expand(1, n, d).clone()
    with torch.no_grad():
        out, turned, same = module(x), module(x[:, order]), module(equal)
        nearby, same_nearby = module(x * (1 + 1e-12)), module(equal * (1 + 1e-12))
        half, nothing = module(equal / 2), module(torch.zeros_like(x))
    if "EF001" in codes and not bool(differs(out, nearby).any()):
        yield from ["EF001"] * bool(differs(out[:, order], turned).any())
    if "EF003" in codes and not bool(differs(same, same_nearby).any()):
        yield from ["EF003"] * bool(differs(same[:, :1].expand_as(same), same).any())
    if "EF012" in codes and not bool(differs(same, same_nearby).any()):
        yield from ["EF012"] * bool(differs(2 * half, same + nothing).any())
    if "EF007" in codes:
        yield from ["EF007"] * bool((nothing != 0).any())
    fields = facts.receptive_fields
    if fields is not None and not bool(fields.all()):
        try:
            jacobian: Any = torch.autograd.functional.jacobian(module, x)
        except RuntimeError:  # such as floor_divide, which torch does not differentiate
            return
        heard = jacobian[0, :, :, 0].abs().nan_to_num(0.0).sum((1, 3)) > 0
        yield from ["receptive fields"] * bool((heard & ~fields).any())


def cases(count: int, seed: int) -> Iterator[list[Program]]:
    """Packs of programs, `count` in all."""
    rng = random.Random(seed)
    begin = rng.randrange(2**40)
    for first in range(begin, begin + count, PACKED):
        n, d = sizes(rng)
        size = min(PACKED, begin + count - first)
        yield [draw_program(number, n, d) for number in range(first, first + size)]


def run(count: int, seed: int) -> Iterator[Tally]:
    """Attack `count` programs; a tally for each pack."""
    for k, programs in enumerate(cases(count, seed)):
        yield attack(programs, seed + 2 * k)


def smallest(program: Program) -> Program:
    """The first line of a program of which something false is said, with its past."""
    for line in program.lines:
        part = trimmed(replace(program, result=line.split(" = ")[0]))
        walk = followed(exported([part], 0))
        if any(check_facts(walk, seed).violations for seed in range(4)):
            return part
    return program


def main() -> int:
    """Exit status 1 if something false was said."""
    warnings.simplefilter("ignore")  # torch warns of variances that are 0 / 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tally = Tally()
    for found in run(given.cases, given.seed):
        tally.add(found)
        for program, wrong in found.violations:
            sys.stdout.write(f"{wrong}\n{program}\nfewest lines: {smallest(program)}\n")
        sys.stderr.write(f"{tally}\n")
    for obstacle, count in tally.obstacles.most_common():
        sys.stdout.write(f"not followed ({count}): {obstacle}\n")
    sys.stdout.write(f"seed {given.seed}: {tally}\n")
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
