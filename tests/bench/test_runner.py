"""The order of runs, failures, agreement and figures, with fake methods whose every number is known."""

from __future__ import annotations

import warnings

import pytest

from branchwise import BranchwiseWarning
from branchwise.bench.methods import Run, TreeSpec, method_names
from branchwise.bench.prompts import Prompt
from branchwise.bench.runner import Results, Row, rotated, run_methods
from branchwise.bench.stopwatch import Timing
from branchwise.bench.summary import summarise

pytestmark = pytest.mark.core

PROMPTS = [(Prompt(str(i), "even" if i % 2 == 0 else "odd", "t", "text"), [1, 2, 3]) for i in range(3)]


class Fake:
    """Notes when it ran; fails from the n-th run on."""

    nodes = 1

    def __init__(self, name: str, log: list[str], fails_at: int | None = None) -> None:
        self.name, self.log, self.fails_at, self.runs = name, log, fails_at, 0

    def run(self, prompt: list[int], max_new_tokens: int, seed: int) -> Run:
        self.log.append(self.name)
        self.runs += 1
        if self.fails_at is not None and self.runs > self.fails_at:
            raise RuntimeError("out of\nluck")
        return Run((1, 2, 3), Timing(0.1, 1.0, 1, 2, 3, 1.0))


def run(log: list[str], *fakes: Fake, **options: object) -> Results:
    return run_methods({f.name: lambda f=f: f for f in fakes}, PROMPTS, warm_up=[1], max_new_tokens=3, **options)


def test_methods_take_turns_and_the_first_changes() -> None:
    log: list[str] = []
    results = run(log, Fake("a", log), Fake("b", log), Fake("c", log))
    assert log[:3] == ["a", "b", "c"], "warm-up"
    assert log[3:] == [*"abc", *"bca", *"cab"]
    assert len(results.rows) == 9
    assert [row.place for row in results.rows[3:6]] == [0, 1, 2]


def test_rotation() -> None:
    assert rotated("abc", 0) == ["a", "b", "c"]
    assert rotated("abc", 5) == ["c", "a", "b"]
    assert rotated([], 1) == []


def test_a_failing_method_is_listed_and_the_others_go_on() -> None:
    log: list[str] = []
    results = run(log, Fake("plain", log), Fake("tree-5", log, fails_at=2), Fake("hf-plain", log, fails_at=0))
    assert results.errors == {"tree-5": "RuntimeError: out of luck", "hf-plain": "RuntimeError: out of luck"}
    assert [len(results.of(name)) for name in results.methods] == [3, 1, 0]
    summary = summarise(results, is_greedy=True)
    assert list(summary) == ["plain", "tree-5", "hf-plain"]
    assert summary["hf-plain"]["overall"] is None and summary["hf-plain"]["error"]
    assert summary["tree-5"]["overall"]["prompts"] == 1
    assert summary["plain"]["error"] is None


def test_a_method_that_cannot_be_made_is_listed() -> None:
    def fails() -> Fake:
        raise ValueError("no such model")

    log: list[str] = []
    results = run_methods({"a": fails, "b": lambda: Fake("b", log)}, PROMPTS, warm_up=[1], max_new_tokens=3)
    assert results.errors == {"a": "ValueError: no such model"}
    assert len(results.of("b")) == 3


def test_a_drafter_that_gives_up_is_a_failure_not_a_slow_tree() -> None:
    class GivesUp(Fake):
        def run(self, prompt: list[int], max_new_tokens: int, seed: int) -> Run:
            warnings.warn("drafter failed; continuing with plain decoding", BranchwiseWarning, stacklevel=1)
            return super().run(prompt, max_new_tokens, seed)

    results = run([], GivesUp("tree-5", []))
    assert "plain decoding" in results.errors["tree-5"]


def test_prompts_beyond_the_context_are_skipped_by_name() -> None:
    results = run([], Fake("a", []), context_limit=5)
    assert set(results.skipped) == {"0", "1", "2"} and not results.rows
    assert "3 prompt tokens and 3 new ones exceed the context of 5" in results.skipped["0"]


def row(method: str, number: int, tokens: tuple[int, ...], seconds: float) -> Row:
    prompt = PROMPTS[number][0]
    return Row(prompt, 3, method, 0, Run(tokens, Timing(0.5, seconds, 1, len(tokens) - 1, len(tokens), seconds)))


def test_ratios_are_of_totals_and_medians_are_of_prompts() -> None:
    results = Results(["plain", "tree-5", "hf-plain"])
    five = (1, 2, 3, 4, 5)  # 4 decoded tokens
    results.rows = [
        *(row("plain", i, five, s) for i, s in enumerate((1.0, 1.0, 2.0))),  # 12 tokens in 4 s: 3 tokens/s
        *(row("tree-5", i, five, s) for i, s in enumerate((0.5, 0.5, 1.0))),  # 12 tokens in 2 s: 6 tokens/s
        *(row("hf-plain", i, (1, 2, 9, 4, 5), s) for i, s in enumerate((2.0, 2.0, 4.0))),  # 1.5 tokens/s
    ]
    tree = summarise(results, is_greedy=True)["tree-5"]["overall"]
    assert tree["tokens_per_second"] == 6.0
    assert tree["median_tokens_per_second"] == 8.0
    assert (tree["ratio_to_plain"], tree["ratio_to_hf-plain"]) == (2.0, 4.0)
    assert (tree["equal"], tree["compared"]) == (3, 3)
    summary = summarise(results, is_greedy=True)
    assert summary["hf-plain"]["overall"]["equal"] == 0
    assert [d["position"] for d in summary["hf-plain"]["differences"]] == [2, 2, 2]
    assert set(summary["plain"]["categories"]) == {"even", "odd"}
    assert summary["tree-5"]["categories"]["odd"]["prompts"] == 1


def test_sampled_outputs_of_the_other_library_are_not_compared() -> None:
    results = Results(["plain", "hf-plain"])
    results.rows = [row("plain", 0, (1, 2), 1.0), row("hf-plain", 0, (3, 4), 1.0)]
    assert "equal" not in summarise(results, is_greedy=False)["hf-plain"]["overall"]


def test_nothing_after_the_first_run_is_no_division_by_zero() -> None:
    results = Results(["plain"])
    results.rows = [row("plain", 0, (1,), 0.0)]
    assert summarise(results, is_greedy=True)["plain"]["overall"]["tokens_per_second"] == 0.0


def test_method_names() -> None:
    assert method_names(["plain", "tree", "hf-plain"], [9, "auto"]) == ["plain", "tree-9", "tree-auto", "hf-plain"]
    assert method_names(["tree:ngram", "tree:mixed+model"], [5]) == ["tree:ngram-5", "tree:mixed+model-5"]
    with pytest.raises(ValueError, match="no method is named 'fast'; there are plain, tree, hf-plain, hf-lookup"):
        method_names(["fast"], [])
    with pytest.raises(ValueError, match="needs at least one budget"):
        method_names(["tree"], [])
    with pytest.raises(ValueError, match="given twice: tree-9"):
        method_names(["tree"], [9, 9])


def test_a_method_s_name_says_what_drafts() -> None:
    assert TreeSpec.of("plain", "mixed") is None
    assert TreeSpec.of("tree-9", "ngram+chain") == TreeSpec("ngram", False, False, "chain", "9")
    assert TreeSpec.of("tree:model+sampled-auto", "mixed") == TreeSpec("model", True, False, "sampled", "auto")
    spec = TreeSpec.of("tree:mixed+model+chain-5", "ngram")
    assert spec == TreeSpec("mixed", True, False, "chain", "5")
    assert spec.options({"draft_model": "m"}, None) == {"draft_model": "m", "tree": "chain"}
    assert TreeSpec("mixed", False, False, None, "5").options({"draft_model": "m"}, "folder") == {}
    assert TreeSpec.of("tree:eagle-5", "ngram") == TreeSpec("eagle", False, True, None, "5")
    spec = TreeSpec.of("tree:mixed+head-5", "ngram")
    assert spec == TreeSpec("mixed", False, True, None, "5")
    assert spec.options({}, "folder") == {"head": "folder"}


class Interrupted(Fake):
    """Ctrl-C comes in the n-th run, the warm-up counted."""

    def run(self, prompt: list[int], max_new_tokens: int, seed: int) -> Run:
        if self.runs == self.fails_at:
            raise KeyboardInterrupt
        self.runs += 1
        return Run((1, 2, 3), Timing(0.1, 1.0, 1, 2, 3, 1.0))


def test_what_was_measured_before_an_interruption_is_kept() -> None:
    log: list[str] = []
    results = run(log, Fake("plain", log), Interrupted("tree-5", log, fails_at=3))
    assert results.interrupted
    assert [len(results.of(name)) for name in results.methods] == [2, 2], "the unfinished prompt counts for nobody"
    with pytest.raises(KeyboardInterrupt):
        run(log, Interrupted("plain", log, fails_at=1))
