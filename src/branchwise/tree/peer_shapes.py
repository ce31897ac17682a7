"""Tree shapes in the files of other programs. Knows their formats and what must hold in them.

Medusa, EAGLE   a list of index paths, as JSON, as a Python literal, or in a Python file with one or more such lists
Sequoia         a growmap: Successors (children of every node), depth, size, mask, roots and branches, as JSON or .pt
branchwise      what `StaticShape.save` wrote
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .static_shape import FORMAT, StaticShape, checked_paths
from .token_tree import TokenTree

#: keys of a growmap that are checked against its Successors where they are there
_GROWMAP_KEYS = ("Successors", "depth", "size", "mask", "roots", "branches")


def read_peer_shape(
    path: str | os.PathLike[str], *, name: str | None = None, complete: bool = False, allow_pickle: bool = False
) -> StaticShape:
    """The shape in a file of any known format.

    Args:
        path: a .pt file is read as a pickle of tensors, everything else as text.
        name: which list of a file with several named ones.
        complete: add the prefixes that index paths lack, instead of refusing them.
        allow_pickle: permit reading a .pt file (without running code from it).

    Raises:
        OSError: there is no such file.
        ValueError: the file has no known format, or its parts contradict each other. Names the part.
    """
    source = Path(path).expanduser()
    try:
        content = _unpickled(source, allow_pickle) if source.suffix in (".pt", ".pth") else _parsed(source)
        return _shape_of(_chosen(content, name), complete)
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from None


def _parsed(source: Path) -> Any:
    text = source.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"neither JSON nor a Python literal (line {error.lineno})") from None
    if len(module.body) == 1 and isinstance(module.body[0], ast.Expr):
        return ast.literal_eval(module.body[0].value)
    return _named_literals(module)


def _named_literals(module: ast.Module) -> dict[str, Any]:
    """Values of the assignments of a Python file that are written out; nothing is run."""
    found = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
            except ValueError:
                continue  # computed, so no list of index paths
    if not found:
        raise ValueError("no list is assigned to a name in this file")
    return found


def _unpickled(source: Path, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise ValueError("a .pt file is a pickle: allow it explicitly (--allow-pickle), or convert it to JSON")
    import pickle

    import torch

    try:
        return _plain(torch.load(source, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"it holds more than tensors and lists, or is damaged: {str(error).splitlines()[0]}") from None


def _plain(value: Any) -> Any:
    """Tensors as lists, at any depth."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _chosen(content: Any, name: str | None) -> Any:
    """The one value that is meant: the whole content, or one of its named lists."""
    if not isinstance(content, dict) or "Successors" in content or "format" in content:
        if name is not None:
            raise ValueError(f"there are no named lists to choose {name!r} from")
        return content
    lists = [key for key, value in content.items() if isinstance(value, list)]
    if name is None and len(lists) == 1:
        return content[lists[0]]
    if name is None or name not in lists:
        asked = "several lists" if name is None else f"no list named {name!r}"
        raise ValueError(f"{asked}: choose one with --name, there are {', '.join(lists) or 'none'}")
    return content[name]


def _shape_of(content: Any, complete: bool) -> StaticShape:
    if isinstance(content, dict):
        return StaticShape.from_dict(content) if content.get("format") == FORMAT else _from_growmap(content)
    paths = checked_paths(content)
    if complete:
        paths = sorted({path[:end] for path in paths for end in range(1, len(path) + 1)})
    try:
        return StaticShape(paths)
    except ValueError as error:
        hint = "; add it, or have it added with --complete" if "missing" in str(error) else ""
        raise ValueError(f"{error}{hint}") from None


def _from_growmap(growmap: dict[str, Any]) -> StaticShape:
    unknown = [key for key in growmap if key not in _GROWMAP_KEYS]
    if "Successors" not in growmap or unknown:
        raise ValueError(f"a growmap has the keys {', '.join(_GROWMAP_KEYS)}, got {', '.join(map(str, growmap))}")
    children = [list(row) for row in checked_paths(growmap["Successors"])]
    if not children:
        raise ValueError("Successors is empty: even a lone root has an entry")
    paths = _paths_of(children)
    _check_growmap(growmap, children, paths)
    return StaticShape(paths[1:])


def _paths_of(children: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Index path of every node, the root's empty one first."""
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for node, row in enumerate(children):
        if node not in paths:
            raise ValueError(f"Successors: node {node} is no child of a node before it")
        for rank, child in enumerate(row):
            if not node < child < len(children):
                raise ValueError(
                    f"Successors[{node}] names node {child}, which is not among the later of {len(children)}"
                )
            if child in paths:
                raise ValueError(f"Successors[{node}] names node {child}, which has a parent already")
            paths[child] = (*paths[node], rank)
    return [paths[node] for node in range(len(children))]


def _check_growmap(growmap: dict[str, Any], children: list[list[int]], paths: list[tuple[int, ...]]) -> None:
    """Whether everything else a growmap says follows from its Successors."""
    size = len(children)
    node_of = {path: node for node, path in enumerate(paths)}
    parents = [node_of[path[:-1]] if path else -1 for path in paths]
    expected = {
        "size": size,
        "depth": [len(path) for path in paths],
        "mask": TokenTree([0] * size, parents).ancestors().int().tolist(),
    }
    for key, right in expected.items():
        if key in growmap and growmap[key] != right:
            raise ValueError(f"{key} contradicts Successors{_first_difference(growmap[key], right)}")
    if "roots" in growmap and "branches" in growmap:
        said = _children_by_level(growmap["roots"], growmap["branches"])
        for node, row in enumerate(children):
            if said.get(node, 0) != len(row):
                raise ValueError(f"branches gives node {node} {said.get(node, 0)} children, Successors {len(row)}")


def _first_difference(said: Any, right: Any) -> str:
    if not isinstance(said, list) or not isinstance(right, list):
        return f": it is {said!r}, not {right!r}"
    if len(said) != len(right):
        return f": it has {len(said)} entries, not {len(right)}"
    return next(f" at node {node}" for node in range(len(right)) if said[node] != right[node])


def _children_by_level(roots: Any, branches: Any) -> dict[int, int]:
    """How many children every node gets, from the nodes of every level and their numbers of children."""
    try:
        return {
            node: count
            for nodes, counts in zip(roots, branches, strict=True)
            for node, count in zip(nodes, counts, strict=True)
        }
    except (TypeError, ValueError):
        raise ValueError("roots and branches must be lists of lists of one shape") from None
