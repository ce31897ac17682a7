"""EAGLE heads run in C: the candidates are torch's, row by row and level by level; the output is the target's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch
from eagle_folders import LAYOUTS, eagle3, friendly
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from branchwise import Speculator
from branchwise.attention.native import NativeUnavailable
from branchwise.draft import DrafterSource, MixedDrafter, NgramSource, native_head
from branchwise.draft import eagle as eagle_module
from branchwise.draft.eagle import EagleDrafter
from branchwise.draft.eagle_config import EagleConfig
from branchwise.draft.eagle_head import EagleHead
from branchwise.draft.eagle_lanes import lanes_for
from branchwise.draft.eagle_load import load_eagle_head
from branchwise.draft.head_lanes import CommittedRows, HeadLanes
from branchwise.draft.native_head import head_library
from branchwise.draft.native_lanes import NativeLanes
from branchwise.draft.protocol import DraftContext
from branchwise.native import kernel
from branchwise.target.quantised import quantise
from compiler import OTHER_PROCESSORS
from oracles import greedy_by_recompute
from zoo import SUPPORTED, VOCAB, build, tiny_llama

pytestmark = [
    pytest.mark.core,
    # the head in C is compiled on the machine: without a compiler there is none
    pytest.mark.skipif(head_library().library is None, reason=head_library().reason or "there is a compiler"),
]
PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
EXACT = tiny_llama(num_hidden_layers=6)
LLAMA = tiny_llama(num_hidden_layers=6).float()
QWEN2 = build(SUPPORTED[2], num_hidden_layers=6).float()


@pytest.fixture(scope="module")
def heads(tmp_path_factory) -> dict[str, EagleHead]:
    """A head of each layout, in float32."""
    folder = tmp_path_factory.mktemp("heads")
    return {
        name: load_eagle_head(
            make().write(folder / name), QWEN2 if name == "eagle1_borrowing" else LLAMA, allow_pickle=True
        )
        for name, make in LAYOUTS.items()
    }


def wide_head(dtype: torch.dtype = torch.float32) -> EagleHead:
    """With whole tiles of the matrix unit, grouped queries, and a vocabulary of more than one part."""
    config = EagleConfig(
        version=3, hidden_size=96, target_hidden_size=64, intermediate_size=80, heads=4, kv_heads=2, head_dim=32,
        vocab_size=9100, draft_vocab_size=9001, deep_draft_vocab_size=4701, features=2, own_embeddings=True,
        own_output=True, norm_each=True, embedding_residual=True,
    )  # fmt: skip
    torch.manual_seed(3)
    head = EagleHead(config, (1, 2)).eval().requires_grad_(False)
    assert head.lm_head is not None
    head.lm_head.weight.mul_(20)
    head.target_ids = torch.randperm(9100)[:9001].sort().values
    return head.to(dtype)


# what is computed


class Both:
    """The same steps with torch and in C."""

    def __init__(self, head: EagleHead, weights: str = "f32") -> None:
        self.head = head
        self.torch, self.native = HeadLanes(head), NativeLanes(head, weights)
        self.lanes: list[int] = []
        self.level: dict[int, int] = {}  # nodes of the latest level, by lane
        self.coins = torch.Generator().manual_seed(5)
        self.furthest = 0.0  # difference of log-probabilities, by the spread of the row's

    def open(self) -> None:
        self.lanes.append(self.torch.open(20))
        assert self.native.open(20) == self.lanes[-1]

    def free(self, place: int) -> None:
        self.level = {}
        lane = self.lanes.pop(place % len(self.lanes))
        self.torch.free(lane)
        self.native.free(lane)

    def random(self, below: int, count: int) -> list[int]:
        return torch.randint(0, below, (count,), generator=self.coins).tolist()

    def read(self, counts: dict[int, int], wanted: int) -> None:
        width, tokens = self.head.feature_width, self.head.config.vocab_size
        rows = {
            lane: CommittedRows(self.random(tokens, n), torch.randn(n, width, generator=self.coins))
            for lane, n in counts.items()
        }
        given = {
            lane: CommittedRows(row.tokens, row.features.to(self.head.fc.weight.dtype)) for lane, row in rows.items()
        }
        self.compare(self.torch.read(given, wanted), self.native.read(given, wanted))
        # levels grow below candidates: a read that asked for none ends before the hidden states they would continue
        self.level = dict.fromkeys(counts, 1) if wanted else {}

    def extend(self, counts: dict[int, int], wanted: int) -> None:
        nodes = {
            lane: list(zip(self.random(self.head.config.vocab_size, n), self.random(self.level[lane], n), strict=True))
            for lane, n in counts.items()
        }
        self.compare(self.torch.extend(nodes, wanted), self.native.extend(nodes, wanted))
        self.level = dict(counts)

    def rollback(self) -> None:
        self.level = {}
        self.torch.rollback()
        self.native.rollback()
        self.native.cache.check_integrity()

    def compare(self, expected, found) -> None:
        assert expected.keys() == found.keys()
        for lane, rows in expected.items():
            assert len(rows) == len(found[lane])
            for one, other in zip(rows, found[lane], strict=True):
                assert len(one) == len(other) == len(dict(other))
                logp = [value for _, value in other]
                assert logp == sorted(logp, reverse=True) and logp[0] <= 0
                # tokens whose probabilities are as good as equal may change places, also with those left out
                known, spread = dict(one), 1 + max(-value for _, value in one)
                for (_, value), (token, own) in zip(one, other, strict=True):
                    for right in (value, known.get(token, value)):
                        self.furthest = max(self.furthest, abs(own - right) / spread)

    def compare_caches(self) -> float:
        worst = 0.0
        for lane in self.lanes:
            for layer in range(self.head.config.layers if self.torch.cache.length(lane) else 0):
                pairs = zip(self.torch.cache.rows(lane, layer), self.native.cache.rows(lane, layer), strict=True)
                worst = max([worst, *(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)])
        return worst


def run_steps(both: Both, wanted: int = 6) -> None:
    """Prompts in chunks, drafts over three lanes of which one stops early, and what was accepted of them."""
    for _ in range(3):
        both.open()
    first, second, third = both.lanes
    both.read({first: 70, second: 3, third: 1}, 0)
    both.read({first: 2, second: 300}, 0)
    for news in ({first: 1, second: 2, third: 4}, {third: 3, first: 1}, {second: 1}):
        both.read(news, wanted)
        for depth in range(4):
            running = [lane for lane in both.level if depth < 2 or lane != third]
            both.extend({lane: 1 + (3 * lane + 2 * depth) % 9 for lane in running}, wanted) if running else None
        both.rollback()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_candidates_are_torchs_in_every_layout(heads, layout):
    both = Both(heads[layout])
    run_steps(both, wanted=both.head.choices(1))
    assert both.furthest < 1e-4
    assert both.compare_caches() < 1e-5


def test_candidates_are_torchs_with_whole_tiles_and_large_vocabularies():
    both = Both(wide_head())
    run_steps(both, wanted=64)
    assert both.furthest < 1e-4
    assert both.compare_caches() < 1e-5


STEP = st.one_of(
    st.tuples(st.just("open")),
    st.tuples(st.just("free"), st.integers(0, 3)),
    st.tuples(st.just("read"), st.lists(st.integers(0, 9), min_size=4, max_size=4), st.integers(0, 20)),
    st.tuples(st.just("grow"), st.lists(st.integers(0, 9), min_size=4, max_size=4), st.integers(1, 20)),
    st.tuples(st.just("rollback")),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, min_size=3, max_size=14))
def test_any_order_of_steps(heads, steps):
    both = Both(heads["speculators_qwen3"])
    both.open()
    for name, *values in steps:
        if name == "open" and len(both.lanes) < 4:
            both.rollback()
            both.open()
        elif name == "free" and len(both.lanes) > 1:
            both.free(values[0])
        elif name == "read":
            both.rollback()
            counts = {lane: n for lane, n in zip(both.lanes, values[0], strict=False) if n}
            if counts:
                both.read(counts, values[1])
        elif name == "grow" and both.level:
            counts = {lane: n for lane, n in zip(both.level, values[0], strict=False) if n}
            if counts:
                both.extend(counts, values[1])
        elif name == "rollback":
            both.rollback()
    both.rollback()
    assert both.furthest < 1e-4
    assert both.compare_caches() < 1e-5


def stands_for(head: EagleHead, weights: str) -> EagleHead:
    """The head with the numbers that packed weights stand for."""
    other = wide_head()
    other.load_state_dict(head.state_dict())
    for module in other.modules():
        if isinstance(module, torch.nn.Linear):
            halves = module.weight.bfloat16().float()
            module.weight.copy_(halves if weights == "bf16" else quantise(module.weight, weights).dequantised())
    return other


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_in_fewer_bits_it_is_no_further_off_than_torch_in_bfloat16(weights):
    rounded = stands_for(wide_head(), weights)
    exact, packed = HeadLanes(rounded), NativeLanes(wide_head(), weights)
    halves = HeadLanes(stands_for(wide_head(), weights).bfloat16())
    features = torch.randn(40, rounded.feature_width)
    laws = []
    for lanes in (exact, packed, halves):
        lane = lanes.open(60)
        lanes.read({lane: CommittedRows(list(range(40)), features.to(lanes.head.fc.weight.dtype))}, 0)
        row = CommittedRows([5], features[:1].to(lanes.head.fc.weight.dtype))
        rows = [*lanes.read({lane: row}, 64)[lane]]
        rows += lanes.extend({lane: [(n, 0) for n in range(8)]}, 64)[lane]
        laws.append([dict(row) for row in rows])

    def off(law):
        rows = zip(laws[0], law, strict=True)
        return sum((own[token] - logp) ** 2 for row, own in rows for token, logp in row.items() if token in own)

    # where rows are rounded to 8 bits, steps are several times as wide as those of bfloat16
    most = 3 if head_library().multiplies_bfloat16 or weights == "bf16" else 64
    assert off(laws[1]) < most * off(laws[2])
    best = [[max(row, key=row.__getitem__) for row in law] for law in laws]
    assert sum(one == other for one, other in zip(best[0], best[1], strict=True)) >= 8


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    native_head.head_library.cache_clear()
    yield
    native_head.head_library.cache_clear()


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("flags", OTHER_PROCESSORS)
def test_processors_without_some_instructions(flags, heads, monkeypatch, tmp_path):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel, "_FLAGS", (*kernel._FLAGS, *flags))
    both = Both(heads["specforge"])
    run_steps(both)
    assert both.furthest < 2e-4
    for weights in ("bf16", "int8", "int4"):
        both = Both(wide_head(), weights)
        run_steps(both)
        assert both.furthest < (2 if weights == "int4" else 0.5)
    assert lanes_for(wide_head(), 8).engine == ("native" if head_library().is_fast else "torch")


@pytest.mark.parametrize("weights", ["f32", "bf16", "int8", "int4"])
def test_a_lane_alone_and_in_company_agree_to_the_last_bit(weights):
    head = wide_head()
    counts = (1, 40, 17, 3, 2)
    begins = [0, *accumulate(counts)]
    features = torch.randn(begins[-1], head.feature_width)
    rows = [CommittedRows(list(range(n)), features[at : at + n]) for at, n in zip(begins, counts, strict=False)]
    nodes = [[(number + n, 0) for n in range(1 + number)] for number in range(5)]

    def drafts(chosen):
        lanes = NativeLanes(head, weights)
        opened = {lanes.open(50): number for number in chosen}
        found = lanes.read({lane: rows[number] for lane, number in opened.items()}, 5)
        below = lanes.extend({lane: nodes[number] for lane, number in opened.items()}, 5)
        return {number: (found[lane], below[lane]) for lane, number in opened.items()}

    together = drafts(range(5))
    for number in range(5):
        assert drafts([number]) == {number: together[number]}


# the drafter


def native_drafter(tmp_path, made=None, **options) -> EagleDrafter:
    head = load_eagle_head((made or eagle3()).write(tmp_path / "head"), LLAMA, allow_pickle=True)
    return EagleDrafter(head, engine="native", **options)


WEIGHTS = ["f32", "bf16", "int8", "int4"]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_greedy_output_is_the_targets_own(tmp_path, weights):
    drafter = native_drafter(tmp_path, friendly(), weights=weights, depth=3, width=4)
    output = Speculator(EXACT, drafter=drafter, budget=17).complete(PROMPT, max_new_tokens=24, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(EXACT, PROMPT, 24)
    assert output.tokens_per_step > 1  # something was accepted, so runs of several tokens were read
    assert drafter._lanes.cache.lanes == ()


@pytest.mark.parametrize("seed", [4, 5])
def test_sampled_output_is_plain_sampling_with_the_same_seed(tmp_path, seed):
    asked = {"max_new_tokens": 24, "do_sample": True, "temperature": 0.7, "seed": seed}
    plain = Speculator(EXACT, drafter="none").complete(PROMPT, **asked)
    drafter = native_drafter(tmp_path, friendly(), weights="f32", depth=4, width=4)
    mixed = MixedDrafter([NgramSource(), DrafterSource(drafter)])
    for used in (drafter, mixed):
        assert Speculator(EXACT, drafter=used, budget=17).complete(PROMPT, **asked).tokens == plain.tokens


def test_several_lanes_draft_what_torch_drafts_and_are_given_back(tmp_path):
    ids = torch.tensor([PROMPT, [0, 0, *PROMPT[2:]], [0] * 8 + PROMPT[8:]])
    mask = (torch.arange(9) >= torch.tensor([[0], [2], [8]])).long()
    drafter = native_drafter(tmp_path, friendly(), weights="f32", depth=3, width=3)
    other = EagleDrafter(drafter.head, engine="torch", depth=3, width=3)
    outputs = [
        Speculator(EXACT, drafter=used, budget=9).generate(
            ids, attention_mask=mask, max_new_tokens=12, do_sample=False, return_dict_in_generate=True
        )
        for used in (drafter, other)
    ]
    for row, prompt in zip(outputs[0].sequences, (PROMPT, PROMPT[2:], PROMPT[8:]), strict=True):
        assert row[9:].tolist() == greedy_by_recompute(EXACT, prompt, 12)
    for one, two in zip(*(output.branchwise for output in outputs), strict=True):
        for record, expected in zip(one.records, two.records, strict=True):
            assert record.draft.tree == expected.draft.tree
            assert record.draft.scores == pytest.approx(expected.draft.scores, abs=1e-4)
    assert drafter._lanes.cache.lanes == ()
    drafter._lanes.cache.check_integrity()


def started(drafter, prompt, **options):
    states = LLAMA(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    features = {layer: states[layer][0, :-1].detach() for layer in drafter.feature_layers}
    context = DraftContext(list(prompt), VOCAB, features, **options)
    return drafter.start(context), context


def test_a_level_is_one_call_and_a_prompt_one_per_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(eagle_module, "CHUNK", 3)
    drafter = native_drafter(tmp_path, weights="f32", depth=5, width=8)
    native, calls = drafter._lanes.native, []
    run = native._call
    monkeypatch.setattr(native, "_call", lambda call: calls.append(call.wanted_count) or run(call))
    state, context = started(drafter, PROMPT)
    assert calls == [0, 0, 0]
    drafter.propose([state], [context], [400])
    assert calls[3:] == [1, 8, 8, 8, 8]


def test_what_a_grammar_forbids_is_not_drafted(tmp_path):
    class EvenOnly:
        def allows(self, path, token):
            return token % 2 == len(path) % 2

    drafter = native_drafter(tmp_path, weights="f32", depth=3, width=6)
    state, context = started(drafter, PROMPT, grammar=EvenOnly())
    (draft,) = drafter.propose([state], [context], [12])
    assert len(draft.tree) > 4
    assert all(draft.tree.tokens[n] % 2 == (draft.tree.depth[n] - 1) % 2 for n in range(1, len(draft.tree)))


def test_probabilities_that_are_no_numbers_are_an_error(tmp_path):
    head = load_eagle_head(eagle3().write(tmp_path), LLAMA)
    head.lm_head.weight[3] = torch.nan
    drafter = EagleDrafter(head, engine="native", weights="f32", depth=2, width=3)
    state, context = started(drafter, PROMPT)
    with pytest.raises(ValueError, match="are not numbers"):
        drafter.propose([state], [context], [9])
    drafter.finish(state)
    assert drafter._lanes.cache.lanes == ()


# who runs it


def test_the_engine_is_chosen_by_what_the_head_is(heads, tmp_path, monkeypatch):
    head = heads["eagle3"]
    fast = "native" if head_library().is_fast else "torch"
    assert EagleDrafter(head).engine == fast
    assert EagleDrafter(wide_head(torch.bfloat16)).engine == fast
    assert EagleDrafter(load_eagle_head(eagle3().write(tmp_path), EXACT)).engine == "torch"  # float64
    assert EagleDrafter(wide_head(), width=65).engine == "torch"
    assert EagleDrafter(head, attention="reference").engine == "torch"
    assert EagleDrafter(wide_head().requires_grad_(True)).engine == "torch"
    nothing = native_head.NativeLibrary(None, "there is no C compiler (cc, gcc or clang)")
    monkeypatch.setattr(native_head, "head_library", lambda: nothing)
    assert EagleDrafter(head).engine == "torch"
    with pytest.raises(NativeUnavailable, match="no C compiler"):
        EagleDrafter(head, engine="native")


def test_an_engine_that_was_asked_for_and_cannot_is_an_error(heads, tmp_path):
    with pytest.raises(NativeUnavailable, match="float64 on cpu"):
        EagleDrafter(load_eagle_head(eagle3().write(tmp_path), EXACT), engine="native")
    with pytest.raises(NativeUnavailable, match="being trained"):
        EagleDrafter(wide_head().requires_grad_(True), engine="native")
    with pytest.raises(NativeUnavailable, match="at most 64 candidates of a node, not 65"):
        EagleDrafter(wide_head(), engine="native", width=65)
    with pytest.raises(ValueError, match="attention='folded' is a backend of engine='torch'"):
        EagleDrafter(wide_head(), engine="native", attention="folded")
    with pytest.raises(ValueError, match="one of auto, native, torch, got 'gpu'"):
        EagleDrafter(heads["eagle3"], engine="gpu")
    with pytest.raises(ValueError, match="one of f32, bf16, int8, int4, got 'int2'"):
        EagleDrafter(heads["eagle3"], engine="native", weights="int2")
    with pytest.raises(ValueError, match="weights='int8' are a format of engine='native', got engine='auto'"):
        EagleDrafter(heads["eagle3"], weights="int8")
