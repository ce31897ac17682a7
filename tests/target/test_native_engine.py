"""What the native engine has of its own: the order of its weights, other processors, rows in company."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

import pytest
import torch

from branchwise.attention.native import NativeUnavailable
from branchwise.cache import PagedCache
from branchwise.native import kernel
from branchwise.target import native_engine
from branchwise.target.decoder_parts import read_decoder
from branchwise.target.native import NativeTarget
from branchwise.target.native_engine import native_library
from branchwise.target.native_packing import Packed, pack, pair_up, stack
from branchwise.target.protocol import TOP_LOGITS
from branchwise.target.quantised import quantise
from branchwise.target.quantised_store import quantised_weights
from branchwise.tree import TokenTree
from compiler import OTHER_PROCESSORS
from small_model_rig import cut
from zoo import SUPPORTED, build

pytestmark = [
    pytest.mark.core,
    # the native engine is compiled on the machine: without a compiler there is none
    pytest.mark.skipif(native_library().library is None, reason=native_library().reason or "there is a compiler"),
]
# products in bfloat16 need a processor that multiplies it
NEEDS_BFLOAT16 = pytest.mark.skipif(
    not native_library().multiplies_bfloat16, reason="this processor does not multiply bfloat16"
)
LLAMA = SUPPORTED[0]
PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
#     0
#    / \
#   1   3        with a repeated token
#   |   |\
#   2   4 5
TREE = TokenTree((23, 5, 6, 9, 5, 0), (-1, 0, 1, 0, 3, 3))


def entry(values: torch.Tensor, packed: Packed, output: int, k: int, *, broadcast: bool) -> float:
    """One number, found as linear.h or broadcast.h says where it lies."""
    record = values[output // 32, k // 32, output % 32 // 16]
    row, column = output % 16, k % 32
    if packed.format in (0, 1):
        floats = record.view((torch.float32, torch.bfloat16)[packed.format])
        return float(floats[16 * column + row if broadcast else 32 * row + column])
    if packed.format == 2:
        at = 64 * (row // 2) + 4 * (column // 2) + 2 * (row % 2) + column % 2
        if broadcast:
            at = 256 * (row // 8) + 32 * (column // 4) + 4 * (row % 8) + column % 4
        return (int(record[at]) - float(packed.zero[output, 0])) * float(packed.scale[output, 0])
    scales, offsets = record[256:].view(torch.float16).view(2, 16)
    if broadcast:
        byte = int(record[128 * (row // 8) + 32 * (column // 8) + 4 * (row % 8) + column % 4])
        nibble = byte >> 4 * (column // 4 % 2) & 15
    else:
        word = int(record[64 * (row // 4) + 2 * column]) + 256 * int(record[64 * (row // 4) + 2 * column + 1])
        nibble = word >> 4 * (row % 4) & 15
    return nibble * float(scales[row]) + float(offsets[row])


@pytest.mark.parametrize("form", ["f32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("how", ["alone", "stacked", "paired"])
@pytest.mark.parametrize("broadcast", [False, True])
def test_every_number_lies_where_it_is_read(form, how, broadcast):
    matrices = [torch.randn(outputs, 64) for outputs in ((40,) if how == "alone" else (24, 40, 19))]
    if how == "paired":
        matrices = [matrices[0], torch.randn(24, 64)]
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}
    kept = [m.to(dtypes[form]) if form in dtypes else quantise(m, form) for m in matrices]
    parts = [Packed.of(k) for k in kept]
    whole = parts[0] if how == "alone" else stack(parts) if how == "stacked" else pair_up(*parts)
    numbers = [k.float() if form in dtypes else k.dequantised() for k in kept]
    if how == "paired":  # 24 outputs are a block and a half
        rows = [(numbers[output // 16 % 2], output // 32 * 16 + output % 16) for output in range(64)]
    else:
        rows = [(matrix, row) for matrix in numbers for row in range(len(matrix))]
    values = pack(whole, broadcast=broadcast)
    assert values.numel() <= sum(part.packed_bytes for part in parts)
    tolerance = 3e-3 if form == "int4" else 1e-6
    for output, (matrix, row) in enumerate(rows):
        if row < len(matrix):
            for k in (0, 1, 2, 31, 32, 45, 63):
                found = entry(values, whole, output, k, broadcast=broadcast)
                assert found == pytest.approx(float(matrix[row, k]), abs=tolerance)


def logits_of(target: NativeTarget) -> torch.Tensor:
    lane = target.open()
    target.prefill(lane, PROMPT)
    logits = target.forward({lane: TREE})[lane].logits
    target.rollback()
    target.free(lane)
    return logits


@torch.no_grad()
def path_by_path(model) -> torch.Tensor:
    """Logits of every node by the model itself, its path run alone."""
    paths = [[TREE.tokens[i] for i in TREE.path(node)] for node in range(len(TREE))]
    return torch.stack(
        [model(torch.tensor([[*PROMPT[:-1], *p]]), use_cache=False).logits[0, -1].float() for p in paths]
    )


@torch.no_grad()
def near_its_own_weights(model, weights: str, tmp_path, products: str | None = None) -> None:
    """Against the model with what the weights stand for: in bfloat16, no further from it than torch's own bfloat16.

    Rounded to 8 bits, whose steps are several times as wide as bfloat16's, it may be eight times as far.
    """
    target = NativeTarget(model, weights=weights, products=products, threads=2, cache_dir=tmp_path)
    logits = logits_of(target)
    stands_for = copy.deepcopy(model)
    if weights.startswith("int"):
        names = dict(read_decoder(stands_for).linears())
        for name, q in quantised_weights(target.decoder, weights, tmp_path).items():
            names[name].weight.copy_(q.dequantised())
    own = path_by_path(stands_for)
    if target.products == "f32":
        torch.testing.assert_close(logits, own, rtol=1e-4, atol=1e-3)
    else:
        rounded = path_by_path(stands_for.bfloat16())
        most = 8 if target.products == "int8" else 1.5
        assert float((logits - own).norm()) < most * float((rounded - own).norm())


def token_by_token(target: NativeTarget, prompt: list[int], path: list[int]) -> torch.Tensor:
    """Logits of plain decoding that happens to choose ``path``."""
    lane = target.open()
    target.prefill(lane, prompt)
    rows = []
    for token in path:
        rows.append(target.forward({lane: TokenTree([token], [-1])})[lane].logits[0])
        target.commit({lane: [0]})
    target.free(lane)
    return torch.stack(rows)


def deep_and_bushy(root: int) -> TokenTree:
    """Two deep branches whose nodes take turns, so that no row is where its position would be, and leaves too."""
    parents = [-1, 0, 0]
    while len(parents) < 40:
        parents.append(len(parents) - 2 if len(parents) % 5 else len(parents) - 3)
    return TokenTree([root, *((7 * node + 1) % 37 for node in range(1, len(parents)))], parents)


def check_exact(target: NativeTarget, committed: int) -> None:
    """A tree's nodes, run at once and as it grows, against their paths decoded token by token; and what comes after."""
    prompt = [(7 * i + i // 9) % 37 for i in range(committed + 1)]
    tree = deep_and_bushy(prompt[-1])
    lane = target.open()
    target.prefill(lane, prompt)
    logits = target.forward({lane: tree})[lane].logits
    target.rollback()
    for leaf in (len(tree) - 1, len(tree) - 2):
        path = tree.path(leaf)
        after = [5, 11]
        plain = token_by_token(target, prompt, [tree.tokens[node] for node in path] + after)
        assert torch.equal(logits[list(path)], plain[: len(path)])
    grown = [target.forward({lane: cut(tree, 3)})[lane].logits]
    grown += [target.extend({lane: cut(tree, nodes)})[lane].logits for nodes in (4, 30, len(tree))]
    assert torch.equal(torch.cat(grown), logits)
    target.commit({lane: path})
    ahead = target.forward({lane: TokenTree([after[0], 3, after[1]], [-1, 0, 0])})[lane].logits
    target.rollback()
    target.free(lane)
    assert torch.equal(ahead[[0, 2]], plain[-2:])


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    native_engine.native_library.cache_clear()
    yield
    native_engine.native_library.cache_clear()


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("flags", [(), *OTHER_PROCESSORS])
def test_processors_without_some_instructions(flags, monkeypatch, tmp_path):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel, "_FLAGS", (*kernel._FLAGS, *flags))
    model = build(LLAMA, hidden_size=96, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2).float()
    for weights in ("f32", "bf16", "int8", "int4"):
        if weights == "bf16":
            model = model.bfloat16().float()  # what it keeps is then what the model has
        near_its_own_weights(model, weights, tmp_path)
    for weights in ("int8", "int4"):
        near_its_own_weights(model, weights, tmp_path, products="int8")
    for options in ({}, {"weights": "int4", "products": "int8"}):
        target = NativeTarget(model, threads=1, cache_dir=tmp_path, **options)
        for committed in (9, 120):
            check_exact(target, committed)
    assert native_library().multiplies_bfloat16 is (native_library().library.bfloat16_way() > 0)


EVERY_WAY = [
    *(pytest.param(weights, "bf16", marks=NEEDS_BFLOAT16) for weights in ("bf16", "int8", "int4")),
    *((weights, "f32") for weights in ("f32", "bf16", "int8", "int4")),
    *((weights, "int8") for weights in ("int8", "int4")),
]


@pytest.mark.parametrize(("weights", "products"), EVERY_WAY)
def test_a_lane_alone_and_in_company_agree_to_the_last_bit(weights, products, tmp_path):
    """Rows packed together, over more than one chunk of 32 and tile of 16."""
    target = NativeTarget(
        build(LLAMA, hidden_size=96, num_attention_heads=4).float(),
        weights=weights,
        products=products,
        cache_dir=tmp_path,
    )
    lanes = []
    for number in range(9):
        lanes.append(target.open())
        target.prefill(lanes[-1], [*PROMPT[number % 3 :], number, 23])
    alone = []
    for lane in lanes:
        alone.append(target.forward({lane: TREE})[lane].logits)
        target.rollback()
    together = target.forward(dict.fromkeys(lanes, TREE))
    for lane, logits in zip(lanes, alone, strict=True):
        assert torch.equal(together[lane].logits, logits)


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize(("weights", "products"), EVERY_WAY)
def test_a_tree_is_its_paths_decoded_token_by_token_to_the_last_bit(window, weights, products, tmp_path):
    """Whatever lies between: pages, parts, steps of the matrix unit, more than 32 nodes; heads as wide as it takes."""
    family = SUPPORTED[0] if window is None else next(f for f in SUPPORTED if f.model_type == "mistral")
    options = {} if window is None else {"sliding_window": window}
    model = build(family, hidden_size=128, head_dim=32, max_position_embeddings=1024, **options).bfloat16()
    target = NativeTarget(model, weights=weights, products=products, threads=1, cache_dir=tmp_path)
    for committed in (5, 121, 254):
        check_exact(target, committed)


@pytest.mark.parametrize("products", ["f32", "int8", pytest.param("bf16", marks=NEEDS_BFLOAT16)])
def test_a_commit_moves_rows_as_torch_does(products, tmp_path):
    """Two lanes, paths of every kind, over the edge of a page."""
    target = NativeTarget(build(LLAMA).float(), weights="int8", products=products, threads=1, cache_dir=tmp_path)
    shape = (target.cache.pool.shape[0] // 2, target.decoder.key_heads, target.decoder.width)
    others = PagedCache(*shape, target.cache.pool.dtype, target.cache.block_rows, turned_values=True)
    lanes = {cache: [cache.open(), cache.open()] for cache in (target.cache, others)}
    coins, generator = random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(6):
        sizes = [coins.randint(1, 90) for _ in range(2)]
        paths = [sorted(coins.sample(range(size), coins.randint(1, size))) for size in sizes]
        rows = torch.randn(2 * shape[0], sum(sizes), *shape[1:], generator=generator)
        for cache, numbers in lanes.items():
            cache.begin(dict(zip(numbers, sizes, strict=True)))
            cache.write(range(2 * shape[0]), dict(zip(numbers, sizes, strict=True)), rows)
            cache.commit(dict(zip(numbers, paths, strict=True)))
    assert target.cache.mover is not None
    for layer in range(shape[0]):
        for one, other in zip(*lanes.values(), strict=True):
            for mine, theirs in zip(target.cache.rows(one, layer), others.rows(other, layer), strict=True):
                assert torch.equal(mine, theirs)


@pytest.mark.parametrize("weights", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("vocab_size", [75, 400, 5])  # a last strip of 11, of 16, and fewer tokens than are told of
@pytest.mark.parametrize("ties", [False, True])
def test_it_tells_the_largest_logits(weights, vocab_size, ties, tmp_path):
    model = build(SUPPORTED[0], dtype=torch.float32, vocab_size=vocab_size, tie_word_embeddings=False)
    if ties:  # two tokens in three have the same row
        with torch.no_grad():
            head = model.get_output_embeddings().weight
            head.copy_(head[[3 * (token // 3) for token in range(vocab_size)]])
    target = NativeTarget(model, weights=weights, threads=2, cache_dir=tmp_path)
    lane = target.open()
    target.prefill(lane, [token % vocab_size for token in PROMPT])
    tree = TokenTree([token % vocab_size for token in TREE.tokens], TREE.parents)
    output = target.forward({lane: tree})[lane]
    values, tokens = output.top
    for row, found in zip(output.logits.tolist(), tokens.tolist(), strict=True):
        assert found == sorted(range(vocab_size), key=lambda token, row=row: (-row[token], token))[:TOP_LOGITS]
    assert torch.equal(values, output.logits.gather(1, tokens))
    assert output.best == output.logits.argmax(1).tolist()


def test_it_hides_no_nan(tmp_path):
    model = build(SUPPORTED[0], dtype=torch.float32, vocab_size=75, tie_word_embeddings=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[70] = torch.nan
    target = NativeTarget(model, weights="f32", threads=2, cache_dir=tmp_path)
    lane = target.open()
    target.prefill(lane, PROMPT)
    output = target.forward({lane: TREE})[lane]
    assert output.best == [-1] * len(TREE)
    assert output.top[0][:, 0].isnan().all()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_rows_in_8_bits_hide_no_nan(wrong, tmp_path):
    model = build(SUPPORTED[0], dtype=torch.float32, tie_word_embeddings=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[9, 17] = wrong
    target = NativeTarget(model, weights="int4", products="int8", threads=1, cache_dir=tmp_path)
    lane = target.open()
    target.prefill(lane, PROMPT)
    finite = target.forward({lane: TREE})[lane].logits.isfinite().all(1).tolist()
    assert finite[:4] == [True, True, True, False]  # node 3 is that token


def test_long_contexts_are_split_among_threads():
    """Pages, parts and chains of several units, in bfloat16, against one thread and the model itself."""
    model = build(LLAMA, max_position_embeddings=2048).float()
    prompt = [(7 * i + i // 9) % 37 for i in range(900)]
    with torch.no_grad():
        own = model(torch.tensor([[*prompt[:-1], 23, 5, 6]]), use_cache=False).logits[0, -1]
    for threads in (1, 3):
        target = NativeTarget(model, weights="bf16", threads=threads)
        lane = target.open()
        target.prefill(lane, prompt)
        logits = target.forward({lane: TREE})[lane].logits
        assert float((logits[2] - own).abs().max()) < 0.03 * float(own.max() - own.min())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"products": "int4"}, "products must be one of f32, bf16, int8, got 'int4'"),
        ({"products": "int8"}, "products='int8' go with weights='int8' or 'int4', got weights='f32'"),
        ({"weights": "int3"}, "weights must be one of f32, bf16, int8, int4, got 'int3'"),
    ],
)
def test_numbers_that_do_not_exist_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NativeTarget(build(LLAMA).float(), **options)


def test_products_that_do_not_go_with_weights_or_processor_are_refused(monkeypatch):
    if native_library().multiplies_bfloat16:
        with pytest.raises(ValueError, match="weights='f32' are multiplied in float32"):
            NativeTarget(build(LLAMA).float(), weights="f32", products="bf16")
    monkeypatch.setattr(native_engine.NativeLibrary, "multiplies_bfloat16", False)
    with pytest.raises(NativeUnavailable, match="does not multiply bfloat16; products='f32' works everywhere"):
        NativeTarget(build(LLAMA).float(), weights="bf16", products="bf16")
