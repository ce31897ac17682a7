"""What attention takes: a line, a tree, a graph, each against attention written out in float64, key by key."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import explain, tree_attention
from ..show.step_json import tree_json
from ..tree import TokenGraph, TokenTree, kary_shape
from ..verify import DraftTree
from .exhibits import Table, TreePicture
from .finding import Finding
from .phrases import tiny
from .subject import Subject
from .verdicts import Check

#: largest error of an output, relative to the largest output, that rounding explains
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
COMMITTED = 40
NODES = 8


@dataclass(frozen=True)
class Input:
    """One shape.

    Attributes:
        shape: ``line``, ``tree`` or ``graph``.
        nodes: of it.
        most_per_position: most nodes that stand at one position.
        error: greatest error of an output, relative to the largest output.
    """

    shape: str
    nodes: int
    most_per_position: int
    error: float


@dataclass(frozen=True)
class Inputs:
    """What was measured.

    Attributes:
        inputs: line, tree and graph.
        drawings: the three for the report.
        rounding: the error that the dtype explains.
        heads: query heads, key/value heads and their width.
        backend: which computed, and why.
        graph_refusal: what the rules' side says to a graph; empty if it takes one.
    """

    inputs: tuple[Input, ...]
    drawings: tuple[TreePicture, ...]
    rounding: float
    heads: tuple[int, int, int]
    backend: str
    graph_refusal: str


def measure(subject: Subject) -> Inputs:
    """Random queries, keys and values in the shape of the model's heads."""
    heads = _heads(subject)
    graph = TokenGraph(range(NODES), [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5), (3, 6), (5, 7), (6, 7)])
    shapes: dict[str, TokenTree | TokenGraph] = {
        "line": TokenTree.from_chain(0, range(1, NODES)),
        "tree": TokenTree(range(NODES), kary_shape((2, 2, 2))[:NODES]),
        "graph": graph,
    }
    query, key, value = _tensors(subject, heads)
    return Inputs(
        inputs=tuple(
            Input(name, len(shape), max(Counter(shape.depth).values()), _error(query, key, value, shape))
            for name, shape in shapes.items()
        ),
        drawings=tuple(TreePicture(f"A {name}", tree_json(shape)) for name, shape in shapes.items()),
        rounding=ROUNDING.get(subject.model.dtype, 1e-2),
        heads=heads,
        backend=str(explain(query, key, value)),
        graph_refusal=_refusal(graph),
    )


def _heads(subject: Subject) -> tuple[int, int, int]:
    config = subject.model.config
    heads = getattr(config, "num_attention_heads", None) or 8
    groups = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 64 * heads) // heads
    return heads, groups, width


def _tensors(subject: Subject, heads: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    count, groups, width = heads

    def rows(number: int, length: int) -> Tensor:
        drawn = torch.randn(1, number, length, width, generator=made, dtype=torch.float64)
        return drawn.to(subject.device, subject.model.dtype)

    return rows(count, NODES), rows(groups, COMMITTED + NODES), rows(groups, COMMITTED + NODES)


def _error(query: Tensor, key: Tensor, value: Tensor, shape: TokenTree | TokenGraph) -> float:
    found = tree_attention(query, key, value, shape)[0].double().cpu()  # [H, N, D]
    exact = [rows[0].double().cpu() for rows in (query, key, value)]
    wanted = _written_out(exact[0], exact[1], exact[2], shape)
    return float((found - wanted).abs().max() / wanted.abs().max())


def _written_out(query: Tensor, key: Tensor, value: Tensor, shape: TokenTree | TokenGraph) -> Tensor:
    """Attention node by node ``[H, N, D]``, each over the committed rows and the nodes that lead to it."""
    group = query.shape[0] // key.shape[0]
    out = torch.empty_like(query)
    for node in range(len(shape)):
        rows = [*range(COMMITTED), *(COMMITTED + other for other in sorted(_leading_to(shape, node)))]
        for head in range(query.shape[0]):
            keys, values = key[head // group, rows], value[head // group, rows]  # [R, D] each
            weights = torch.softmax(keys @ query[head, node] * query.shape[2] ** -0.5, dim=0)  # [R]
            out[head, node] = weights @ values
    return out


def _leading_to(shape: TokenTree | TokenGraph, node: int) -> set[int]:
    parents = shape.parents(node) if isinstance(shape, TokenGraph) else shape.parents[node : node + 1]
    return {node}.union(*(_leading_to(shape, parent) for parent in parents if parent >= 0))


def _refusal(graph: TokenGraph) -> str:
    try:
        # that it is refused is what is shown
        DraftTree.deterministic(graph)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def finding(found: Inputs) -> Finding:
    """What it says about the claim."""
    checks = [
        Check(
            f"attention takes a {entry.shape}",
            f"error {tiny(entry.error)} of the largest output over {entry.nodes} nodes "
            f"(rounding explains {tiny(found.rounding)})",
            entry.error <= found.rounding,
        )
        for entry in found.inputs
    ]
    tree = next(entry for entry in found.inputs if entry.shape == "tree")
    several = Check(
        "a tree has several nodes at one position",
        f"up to {tree.most_per_position} of its {tree.nodes} nodes",
        tree.most_per_position > 1,
    )
    refused = Check(
        "a graph can be attended to, but not be verified",
        f"as a draft it is refused: “{found.graph_refusal}”" if found.graph_refusal else "as a draft it is taken",
        bool(found.graph_refusal),
    )
    heads, groups, width = found.heads
    worst = max(entry.error for entry in found.inputs)
    return Finding(
        headline=f"Line, tree and graph agree with attention written out in float64 to {tiny(worst)}.",
        says=(*checks, several, refused),
        instead=(),
        how=f"tree_attention with {heads} query heads over {groups} key/value heads of width {width}, as the model has "
        f"them, on random numbers: {COMMITTED} committed tokens, then {NODES} nodes. Against a loop over nodes and "
        f"heads in float64 that walks from each node to its parents. Backend {found.backend}.",
        exhibits=(
            *found.drawings,
            Table(
                "Three inputs",
                ("input", "nodes", "most nodes at one position", "error"),
                tuple((e.shape, str(e.nodes), str(e.most_per_position), tiny(e.error)) for e in found.inputs),
            ),
        ),
    )
