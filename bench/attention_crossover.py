"""Where each way of computing tree attention pays: prints one table per question.

    python bench/attention_crossover.py --threads 1

decode: a tree of N nodes after S committed tokens, all query heads of a key/value head folded into the query axis.
    native     the native backend
    fused      scaled_dot_product_attention with a cached bias (what the folded backend does)
    matmul     matmul, softmax in float32, matmul, only the tree block masked
    blocked    the blocked backend (soft-cap, sinks)
    repeated   scaled_dot_product_attention with keys repeated to all heads, as transformers' sdpa does
prompt: a chain of N nodes after S committed tokens.
    folded     one call, bias repeated for every query head of a group
    by head    one call per query head of a group, bias not repeated; causal mode without a bias if S = 0

Times are the best of several calls in milliseconds per layer: other programs on the machine can only add to them. With
one thread it is processor time, which a busy machine disturbs little; run with all threads on a quiet one. Compare with
`branchwise bench attention`, where keys are not in a cache.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from branchwise.attention import TreeLayout, get_backend
from branchwise.attention import folded as folded_module
from branchwise.bench.limits import best_ms
from branchwise.tree import TokenTree, kary_shape

HEADS = ((9, 3, 64), (16, 4, 128), (8, 8, 64))
"""Query heads H, key/value heads K, width D."""
DTYPES = (torch.bfloat16, torch.float32)


def inputs(heads: int, kv_heads: int, dim: int, nodes: int, slots: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Query, key and value strided as a model and a preallocated cache hand them over."""
    query = torch.randn(1, nodes, heads, dim, dtype=dtype).transpose(1, 2)  # [B, H, N, D]
    key, value = (torch.randn(1, kv_heads, slots + nodes + 512, dim, dtype=dtype) for _ in range(2))
    return query, key[:, :, : slots + nodes], value[:, :, : slots + nodes]  # [B, K, S + N, D]


def matmul_attention(query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, scale: float) -> Tensor:
    batch, heads, nodes, dim = query.shape
    kv_heads, slots = key.shape[1], key.shape[2] - nodes
    folded = query.mul(scale).reshape(batch, kv_heads, -1, dim)  # [B, K, G * N, D]
    scores = (folded @ key.transpose(2, 3)).float()  # [B, K, G * N, S + N]
    block = scores.view(batch, kv_heads, heads // kv_heads, nodes, -1)[..., slots:]  # [B, K, G, N, N]
    block.masked_fill_(~layout.tree_block(), -torch.inf)
    return (scores.softmax(3).to(query.dtype) @ value).view(batch, heads, nodes, -1)


def repeated_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    group = query.shape[1] // key.shape[1]
    keys, values = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))  # [B, H, S + N, D]
    return scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)


def decode_table(node_counts: list[int], slot_counts: list[int], repeats: int) -> None:
    print(f"\ndecode {'':21} {'H':>3} {'K':>3} {'D':>4} {'S':>5} {'N':>4}  native   fused  matmul  blocked  repeated")
    for dtype in DTYPES:
        for heads, kv_heads, dim in HEADS:
            for slots in slot_counts:
                for nodes in node_counts:
                    shape = kary_shape((2,) * 8)[:nodes]
                    layout = TreeLayout.from_trees(TokenTree([0] * nodes, shape))
                    query, key, value = inputs(heads, kv_heads, dim, nodes, slots, dtype)
                    scale = dim**-0.5
                    bias = layout.additive_mask((slots,), slots, None, dtype)
                    calls = [
                        lambda: get_backend("native")(query, key, value, layout, (slots,), scale=scale),  # noqa: B023
                        lambda: get_backend("folded")(query, key, value, layout, (slots,), scale=scale),  # noqa: B023
                        lambda: matmul_attention(query, key, value, layout, scale),  # noqa: B023
                        lambda: get_backend("blocked")(query, key, value, layout, (slots,), scale=scale),  # noqa: B023
                        lambda: repeated_attention(query, key, value, bias, scale),  # noqa: B023
                    ]
                    times = [best_ms(call, repeats) for call in calls]
                    print(
                        f"{dtype!s:28} {heads:3} {kv_heads:3} {dim:4} {slots:5} {nodes:4}"
                        f" {times[0]:7.2f} {times[1]:7.2f} {times[2]:7.2f} {times[3]:8.2f} {times[4]:9.2f}",
                        flush=True,
                    )


def prompt_table(repeats: int) -> None:
    print(f"\nprompt {'':21} {'H':>3} {'K':>3} {'D':>4} {'S':>5} {'N':>4}  folded  by head")
    for dtype in DTYPES:
        for heads, kv_heads, dim in HEADS[:2]:
            for slots in (0, 2000):
                for nodes in (32, 64, 128, 256, 512):
                    layout = TreeLayout.chain(nodes)
                    query, key, value = inputs(heads, kv_heads, dim, nodes, slots, dtype)
                    times = []
                    for limit in (1 << 30, 0):
                        folded_module.PROMPT_NODES = limit
                        call = get_backend("folded")
                        run = lambda: call(query, key, value, layout, (slots,), scale=dim**-0.5)  # noqa: B023, E731
                        times.append(best_ms(run, repeats))
                    print(
                        f"{dtype!s:28} {heads:3} {kv_heads:3} {dim:4} {slots:5} {nodes:4}"
                        f" {times[0]:7.2f} {times[1]:8.2f}",
                        flush=True,
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--slots", type=int, nargs="+", default=[256, 2000, 6000])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {arguments.threads} threads, ms")
    decode_table(arguments.nodes, arguments.slots, arguments.repeats)
    prompt_table(arguments.repeats)


if __name__ == "__main__":
    main()
