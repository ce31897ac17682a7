"""What the triton backend adds to the shared test: splits, tiles, pages, errors, and that it compiles for GPUs.

The kernels run in Triton's interpreter where there is no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_oracle import oracle_attention
from test_backends import (
    CASES,
    DIAMOND,
    NEEDS_TRITON,
    SCRAMBLED,
    STAR,
    Case,
    attend,
    device_of,
    drawn,
    options_of,
    random_parents,
    tensors,
    tree_of,
)

from branchwise.attention import paged_tree_attention, tree_attention, triton_backend
from branchwise.tree import TokenTree

pytestmark = [pytest.mark.core, NEEDS_TRITON]


def expected(case: Case, query, key, value) -> torch.Tensor:
    options: dict = {"scale": case.dim**-0.5} | options_of(case, torch.float64)
    committed = case.committed or (case.slots,) * case.batch
    return oracle_attention(query, key, value, list(map(drawn, case.per_row)), committed, **options)


SPLIT = {
    "lengths": Case((SCRAMBLED, STAR, DIAMOND), batch=3, slots=150, committed=(150, 0, 37)),
    "window": Case(SCRAMBLED, slots=150, options={"window": 70}),
    "everything": replace(CASES["everything"], slots=120, committed=(120, 7, 64), options=CASES["everything"].options),
}


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("name", SPLIT)
def test_parts_merge_into_the_whole(name: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows have fewer blocks of keys than there are parts: an empty part must weigh nothing."""
    tiling = triton_backend.Tiling(rows=16, block=16, columns=16, parts=parts, warps=4)
    monkeypatch.setattr(triton_backend, "choose_tiling", lambda *_: tiling)
    case = SPLIT[name]
    query, key, value = tensors(case, torch.float64)
    options = options_of(case, torch.float64)
    output = attend(query, key, value, case.trees, committed=case.committed, backend="triton", **options)
    torch.testing.assert_close(output, expected(case, query, key, value), rtol=0, atol=1e-12)


def test_256_nodes_in_four_words(monkeypatch: pytest.MonkeyPatch) -> None:
    tiling = triton_backend.Tiling(rows=64, block=32, columns=32, parts=1, warps=4)
    monkeypatch.setattr(triton_backend, "choose_tiling", lambda *_: tiling)
    case = Case(tree_of(random_parents(256, 8)), slots=5, heads=2, kv_heads=1, dim=4, value_dim=4)
    query, key, value = tensors(case, torch.float64)
    output = attend(query, key, value, case.trees, backend="triton")
    torch.testing.assert_close(output, expected(case, query, key, value), rtol=0, atol=1e-12)


def test_tiles_follow_the_call() -> None:
    def tiling(heads, kv_heads, nodes, dim, dtype, visible, processors=132):
        query = torch.empty(1, heads, nodes, dim, dtype=dtype)
        return triton_backend.choose_tiling(query, kv_heads, dim, nodes, visible, processors)

    short = tiling(32, 8, 16, 128, torch.bfloat16, visible=200)
    assert (short.rows, short.parts) == (64, 1), "all 4 x 16 queries of a key/value head in one tile, nothing to split"
    long = tiling(32, 8, 16, 128, torch.bfloat16, visible=8192)
    assert long.parts == 8192 // (4 * long.block) and 8 * long.parts <= 2 * 132 + 8
    assert tiling(32, 8, 256, 128, torch.bfloat16, visible=8192).rows == 128
    assert tiling(1, 1, 1, 64, torch.float32, visible=0).parts == 1
    for dtype in (torch.float16, torch.float32, torch.float64):
        for dim in (16, 64, 80, 128, 256):
            found = tiling(8, 8, 64, dim, dtype, visible=8192)
            assert found.block >= 16 and 64 % found.columns == 0


# pages


@pytest.mark.parametrize("backend", ["folded", "triton"])
@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("options", [{}, {"window": 9}, {"softcap": 2.0, "sinks": (0.1, -1.0, 2.0, 0.3)}])
def test_pages_in_any_order_are_rows(backend: str, rows_first: bool, options: dict) -> None:
    trees, committed, page = (SCRAMBLED, tree_of((-1,)), STAR, DIAMOND), (21, 0, 8, 3), 4
    case = Case(trees, batch=4, slots=21, committed=committed, value_dim=12, options=options)
    query, key, value = tensors(case, torch.float64)
    # 8 pages each, shuffled among pages of garbage; the entries behind the last row in use name no page at all
    order = torch.randperm(40)[:32].view(4, 8)
    pages = [torch.full((40, 2, page, width), 1e3, dtype=torch.float64) for width in (8, 12)]
    for row, (tree, count) in enumerate(zip(trees, committed, strict=True)):
        for buffer, rows in zip(pages, (key, value), strict=True):
            used = torch.cat((rows[row, :, :count], rows[row, :, 21 : 21 + len(tree)]), dim=1)
            for at in range(used.shape[1]):
                buffer[order[row, at // page], :, at % page] = used[:, at]
        order[row, -(-(count + len(tree)) // page) :] = -7
    if rows_first:
        pages = [buffer.transpose(1, 2).contiguous().transpose(1, 2) for buffer in pages]
    device = device_of(backend)
    moved = {
        name: value.to(device) if name == "sinks" else value for name, value in options_of(case, torch.float64).items()
    }
    output = paged_tree_attention(
        *(tensor.to(device) for tensor in (query, *pages, order)),
        trees,
        committed=committed,
        backend=backend,
        **moved,
    ).cpu()
    torch.testing.assert_close(output, expected(case, query, key, value), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"page_table": torch.zeros(1, 3)}, TypeError, "page_table must be int32 or int64, got torch.float32"),
        ({"page_table": torch.zeros(2, 3, dtype=torch.int64)}, ValueError, r"page_table must be \[1, pages\]"),
        ({"committed": [9]}, ValueError, "row 0 has 9 committed tokens and 4 nodes, 4 pages of 4 rows"),
        ({"committed": [13]}, ValueError, r"committed\[0\] = 13 is outside"),
        ({"value_pages": torch.zeros(5, 2, 3, 8)}, ValueError, "as many pages, heads and rows"),
        ({"key_pages": torch.zeros(5, 2, 4, 7)}, ValueError, "key_pages has width 7 but query has width 8"),
        ({"key_pages": torch.zeros(5, 3, 4, 8)}, ValueError, "4 heads, which is not a multiple of the 3 heads"),
        ({"key_pages": torch.zeros(5, 2, 4, 8).half()}, ValueError, "key_pages is torch.float16"),
        ({"key_pages": torch.zeros(5, 2, 8)}, ValueError, "key_pages must have 4 axes"),
        ({"page_table": torch.full((1, 3), 5)}, ValueError, "row 0 of page_table names page 5, there are 5 pages"),
        ({"window": 0}, ValueError, "window must be >= 1"),
    ],
)
def test_wrong_pages_are_refused(changes: dict, error: type[Exception], message: str) -> None:
    arguments = {
        "query": torch.zeros(1, 4, 4, 8),
        "key_pages": torch.zeros(5, 2, 4, 8),
        "value_pages": torch.zeros(5, 2, 4, 8),
        "page_table": torch.zeros(1, 3, dtype=torch.int64),
        "tree": TokenTree((5, 8, 9, 8), (-1, 0, 0, 1)),
        "committed": [7],
    }
    assert paged_tree_attention(**arguments).shape == (1, 4, 4, 8)
    with pytest.raises(error, match=message):
        paged_tree_attention(**(arguments | changes))


# where it does not run


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    query, key, value = tensors(Case(STAR), torch.float32)
    with pytest.raises(ImportError, match=r"needs the package triton: pip install 'branchwise\[triton\]'"):
        tree_attention(query, key, value, STAR, backend="triton")


def test_a_cpu_is_named_with_what_to_use_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "is_interpreted", lambda: False)
    query, key, value = tensors(Case(STAR), torch.float32)
    with pytest.raises(triton_backend.TritonUnavailable, match="needs a CUDA or ROCm device, the tensors are on cpu"):
        tree_attention(query, key, value, STAR, backend="triton")


COMPILE = """
import importlib, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

found = []
for module, kernel, signature, constants, options, arch in json.load(sys.stdin):
    for name, value in constants.items():
        if isinstance(value, str):  # a dtype
            constants[name] = getattr(triton.language, value)
    source = ASTSource(getattr(importlib.import_module(module), kernel), signature, constants)
    binary = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    found.append([len(binary.asm["cubin"]), binary.metadata.shared])
print(json.dumps(found))
"""
ATTEND: dict[str, object] = {
    "KV_HEADS": 8, "GROUP": 4, "DIM": 128, "VALUE_DIM": 128, "PAD_DIM": 128, "PAD_VALUE_DIM": 128,
    "ROWS": 64, "COLUMNS": 16, "FACTOR": 0.1, "CAP": 0, "PAGE": 0, "HAS_WINDOW": False, "HAS_SINKS": False,
    "IS_CAUSAL": False, "ONE_PART": False, "WIDEN": False, "SUM": "float32",
}  # fmt: skip
EVERYTHING = {"CAP": 20.0, "HAS_SINKS": True, "HAS_WINDOW": True, "PAGE": 16, "ONE_PART": True}


def job(kernel: Any, pointers: dict[str, str], constants: dict[str, object], arch: int, **options: int) -> list:
    """One compilation as the child process wants it: all that is neither a pointer nor a constant is an int32."""
    module, name = kernel.fn.__module__, kernel.fn.__name__
    signature = {name: pointers.get(name, "constexpr" if name in constants else "i32") for name in kernel.arg_names}
    return [module, name, signature, constants, options, arch]


def attend_job(kernel: Any, dtype: str, constants: dict[str, object], arch: int) -> list:
    partial = f"*{dtype}" if constants.get("ONE_PART") else "*fp32"
    pointers = dict.fromkeys(("query", "key", "value", "sinks"), f"*{dtype}")
    pointers |= dict.fromkeys(("table", "nodes", "depth", "column_depth", "committed"), "*i32")
    pointers |= {"output": partial, "logsum": partial, "words": "*i64"}
    constants = ATTEND | {"BLOCK": 32 if dtype == "fp32" else 64} | constants
    return job(kernel, pointers, constants, arch, num_warps=4, num_stages=2)


# on a GPU every test of this file compiles the kernels
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="on a GPU the other tests compile")
def test_the_kernels_compile_for_gpus_and_fit_their_memory(tmp_path) -> None:
    """No GPU needed: Triton brings the assembler of NVIDIA. What the interpreter forgives, the compiler does not."""
    from branchwise.attention.triton_kernel import attend_part, merge_parts
    from branchwise.cache.commit_kernel import move_rows

    merged = {"partial": "*fp32", "logsum": "*fp32", "sinks": "*bf16", "output": "*bf16"}
    jobs = [
        attend_job(attend_part, "bf16", EVERYTHING, 90),
        # few rows: the exact products of float32 are written out, which takes the assembler its time
        attend_job(attend_part, "fp32", {"ROWS": 16}, 80),
        job(merge_parts, merged, {"VALUE_DIM": 128, "PAD_VALUE_DIM": 128, "PAD_PARTS": 64, "HAS_SINKS": True}, 90),
        job(move_rows, dict.fromkeys(("buffers", "places", "lanes"), "*i64"), {"ITEM": "int16", "BLOCK": 128}, 80),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], input=json.dumps(jobs), env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for size, shared in json.loads(run.stdout.splitlines()[-1]):
        assert size > 1000
        assert shared <= 99 * 1024, "more shared memory than the smallest GPU in question has"
