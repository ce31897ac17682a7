"""The generations that several rows look at: plain decoding, chains and trees at the same budgets, in turns.

Chain and tree get the same drafter (n-grams and recycled tokens, no second model) and the same number of nodes; they
differ in shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..decode import Generation
from ..draft import Drafter, NoneDrafter, make_drafter
from .subject import Subject

PARTS = ("draft", "forward", "verify", "commit", "other")


@dataclass(frozen=True)
class Method:
    """One way to decode.

    Attributes:
        name: ``plain``, ``chain`` or ``tree``.
        budget: most nodes per forward.
    """

    name: str
    budget: int

    @property
    def label(self) -> str:
        """For readers."""
        return "plain" if self.name == "plain" else f"{self.name}, {self.budget} nodes"

    def drafter(self) -> Drafter:
        """One that has seen nothing."""
        if self.name == "plain":
            return NoneDrafter()
        return make_drafter("mixed", tree="chain" if self.name == "chain" else "best_first")


@dataclass(frozen=True)
class Figures:
    """One method over all prompts.

    Attributes:
        method: which.
        tokens: emitted.
        steps: forwards after prefill.
        nodes: over all steps, roots included.
        inner_stops: steps whose walk ended at a node that has children.
        over_bound: steps that emitted more tokens than depth + 1.
        off_path: steps whose accepted nodes are no path from the root down.
        seconds: by part of the step.
        equal_prompts: prompts whose tokens are those of plain decoding.
        prompts: how many there were.
    """

    method: Method
    tokens: int
    steps: int
    nodes: int
    inner_stops: int
    over_bound: int
    off_path: int
    seconds: dict[str, float]
    equal_prompts: int
    prompts: int

    @classmethod
    def of(cls, method: Method, runs: Sequence[Generation], plain: Sequence[Generation]) -> Figures:
        """Adds up."""
        records = [record for run in runs for record in run.records]
        return cls(
            method=method,
            tokens=sum(len(run.tokens) for run in runs),
            steps=len(records),
            nodes=sum(len(record.draft.tree) for record in records),
            inner_stops=sum(bool(record.draft.tree.children(record.verdict.path[-1])) for record in records),
            over_bound=sum(len(record.tokens) > record.draft.tree.height + 1 for record in records),
            off_path=sum(record.verdict.path != record.draft.tree.path(record.verdict.path[-1]) for record in records),
            seconds={part: sum(getattr(step, part) for run in runs for step in run.seconds) for part in PARTS},
            equal_prompts=sum(run.tokens == other.tokens for run, other in zip(runs, plain, strict=True)),
            prompts=len(runs),
        )

    @property
    def tokens_per_step(self) -> float:
        """Accepted plus one, averaged over steps."""
        return self.tokens / self.steps

    @property
    def total_seconds(self) -> float:
        """Of all steps, without prefill."""
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        """Without prefill."""
        return self.tokens / self.total_seconds

    def share(self, part: str) -> float:
        """Of the time of a step."""
        return self.seconds[part] / self.total_seconds


@dataclass(frozen=True)
class Runs:
    """All of them.

    Attributes:
        plain: one token per forward.
        chains: by budget, rising.
        trees: at the same budgets.
        outputs: what plain decoding wrote, per prompt.
    """

    plain: Figures
    chains: tuple[Figures, ...]
    trees: tuple[Figures, ...]
    outputs: tuple[tuple[int, ...], ...]

    @property
    def all(self) -> tuple[Figures, ...]:
        """Plain first, then chain and tree by budget."""
        pairs = zip(self.chains, self.trees, strict=True)
        return (self.plain, *(figures for pair in pairs for figures in pair))


def run_all(subject: Subject, progress: Callable[[str], None]) -> Runs:
    """Runs every method on every prompt; the order turns from prompt to prompt."""
    plain = Method("plain", 1)
    pairs = [(Method("chain", budget), Method("tree", budget)) for budget in subject.effort.budgets]
    methods = [plain, *(method for pair in pairs for method in pair)]
    tokens = subject.new_tokens(subject.effort.new_tokens)
    found: dict[Method, list[Generation]] = {method: [] for method in methods}
    for method in methods:
        subject.warm_up(method.drafter(), method.budget)
    for prompt in range(len(subject.prompts)):
        turn = prompt % len(methods)
        for method in (*methods[turn:], *methods[:turn]):
            found[method].append(subject.run(method.drafter(), method.budget, tokens, prompt))
        progress(f"plain, chain and tree: prompt {prompt + 1} of {len(subject.prompts)}")
    figures = {method: Figures.of(method, runs, found[plain]) for method, runs in found.items()}
    return Runs(
        plain=figures[plain],
        chains=tuple(figures[chain] for chain, _ in pairs),
        trees=tuple(figures[tree] for _, tree in pairs),
        outputs=tuple(run.tokens for run in found[plain]),
    )
