"""All rules as a page of the documentation."""

import textwrap

from everyformer.checks.rules import RULES

HEAD = """# Rules of `everyformer check`

A layer is *universal* if stacks of it, with feed-forward layers between, come as near
as you like to every continuous function of sequences: in L^p, if nearness is a mean
over the domain; in the sup norm, if it is the largest error. `everyformer check LAYER`
(or `ef.check`) decides that by the rules below, each about one property of the layer.
An **obstacle** is a property that rules universality out, in one of the two distances
at least (each rule says when); a **condition** is a property that a theorem asks for.
This page is made from the rules themselves; `everyformer explain CODE` prints one.

{table}
A rule states a property "for all weights and inputs" (or, for conditions, "there are
weights"). PROVED comes from the structure of a layer, or from following the operations
of a module; REFUTED from a counterexample, or from structure; the rest is UNKNOWN, with
what was measured. X is the input, n tokens of d numbers as rows, g(X) the output of the
layer, A(X) its matrix of attention weights, and 1 a vector of ones.

**Weights** are the parameters that require gradients, each free to take any value.
Frozen parameters and buffers are part of the module: they keep their numbers when
weights are drawn to look for counterexamples. A proof that something holds for all
weights (an obstacle) takes buffers as they are, and frozen parameters as free, so it
holds for those that are there. A proof that there are weights (a condition, or
universality) needs every parameter free: not frozen, not shared, not lying in the
memory of another. A stack has such layers, each with weights of its own, and
feed-forward layers; with `check(..., feed_forward=False)`, such layers alone. Mixers
are layers like others ([mixers.md](mixers.md)): `Residual(mixer)` has the skip
connection of a block, and `AbsolutePositions(Residual(mixer), n, d)` positions.

**Structure** is what `spec()` says. It counts only where it was written for what runs:
a class of `everyformer.layers`, or a subclass that overrides none of its members,
without hooks, methods or settings of the object's own, parametrisations or parts of
other classes. Elsewhere, and for a `spec()` of your own, it is a declaration: it is
shown, and proves nothing; `check(Subject(name, None, spec, n, d))` judges a spec by
itself. With `check(module, n, d, spec=AttentionSpec(...))` you declare it: a module
that contradicts it is refused (an input violates what must hold, or all weights keep
what some must break), and otherwise the report tells, in `declared`, what would follow
if it were true. Whatever its structure says, a module is not PROVED universal while
anything that was measured or followed speaks against it: an obstacle that no weights
violate, a rearrangement of the tokens that commutes with all draws, row sums that
agree, or operations that say the contrary.

**Layout.** Modules take (batch, n, d) or (n, batch, d). To find out which, `check` runs
a batch of two sequences, in which one must not change the output of the other, with the
weights that the module came with and with others; its `batch_first` is tried first. If
neither layout passes, check refuses with the numbers; `layout=` (`--layout`) says which
one to take, and then runs one sequence at a time. A module is run in evaluation mode:
dropout does nothing, and batch norms use their running statistics.

**What is judged** is a copy of the module in float64, as a function of the numbers it
is given. A module that gives different outputs for the same numbers (at random, where
gradients are recorded, or with other strides) is refused. Its operations prove nothing
if every run changes an attribute of it, if it reads numbers off its input
(`float(x.max())`, `x.numpy()`, `repr(x)`, a capsule of DLPack), starts a thread, calls
operations that were not exported, or reads what a copy of it would not have: globals
that can change, closures, caches ([following.md](following.md)). What it does in
float32 alone, or in a thread that was there before, is not seen: a proof from
operations assumes that the module computes the same function in every run, and says so.
"""


def rules_page() -> str:
    """The page: one section for each rule."""
    lines = ["| rule | property | kind |", "|---|---|---|"]
    lines += [f"| {rule.code} | {_title(rule.text)} | {rule.kind} |" for rule in RULES]
    parts = [HEAD.replace("{table}", "\n".join(lines) + "\n")]
    for rule in RULES:
        _, *sections = (rule.text or "").strip().split("\n\n")
        parts.append(f"## {rule.code}: {_title(rule.text)}\n")
        parts.append(f"`{rule.name}`, {_article(rule.kind)}\n")
        for section in sections:
            heading, _, body = section.partition("\n")
            text = " ".join(textwrap.dedent(body).split())
            parts.append(f"**{heading.rstrip(':')}.** {text}\n")
    return "\n".join(parts)


def _title(text: str | None) -> str:
    """The first line, which begins with the code."""
    return (text or "").strip().partition("\n")[0].partition(": ")[2].rstrip(".")


def _article(kind: str) -> str:
    return {
        "obstacle": "an obstacle: where it is PROVED, a layer is not universal; REFUTED is "
        "good news.",
        "condition": "a condition of Theorem 3 of Luo et al. 2022: PROVED is good news.",
        "measure": "a measure: neither an obstacle nor a condition.",
    }[kind]
