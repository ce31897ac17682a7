"""Who drafts, and how: the options that commands share, what is wrong with them, and what a drafter is made with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_options import load_model

if TYPE_CHECKING:
    from .bench.methods import TreeSpec

Drafter = Annotated[str, typer.Option(help="auto, none, ngram, mixed, model, eagle, medusa, block, early_exit, ...")]
DraftModel = Annotated[
    str | None, typer.Option(help="A smaller model that drafts, alone (drafter model) or with others (mixed, auto).")
]
Head = Annotated[
    str | None, typer.Option(help="Folder of a trained head: for eagle, medusa and block, or in the tree of mixed.")
]
DraftTree = Annotated[
    str | None,
    typer.Option(
        help="How drafts grow: chain, best_first; with a draft model also dynamic, sampled.",
        show_default="dynamic with a draft model, else best_first",
    ),
]
ExitLayer = Annotated[
    int | None,
    typer.Option(help="With --drafter early_exit: so many first layers draft.", show_default="a quarter of them"),
]
TreeFile = Annotated[
    Path | None, typer.Option(help="The shape that --drafter static drafts: a file of branchwise import-tree.")
]


def read_drafter_files(drafter: str, tree: Path | None, suffix_store: Path | None) -> dict[str, Any]:
    """Options of the named drafter that come from files, which are read before a model is loaded."""
    for option, given, wanted in (("--tree", tree, "static"), ("--suffix-store", suffix_store, "suffix")):
        if given is not None and drafter != wanted:
            raise ValueError(f"{option} goes with --drafter {wanted}, not with {drafter}")
    if tree is not None:
        from .tree import StaticShape

        return {"shape": StaticShape.load(tree)}
    if suffix_store is not None:
        from .draft import SuffixStore

        if not suffix_store.expanduser().parent.is_dir():
            raise ValueError(f"there is no folder {str(suffix_store.parent)!r} for the suffix store")
        return {"store": SuffixStore.load(suffix_store) if suffix_store.expanduser().exists() else SuffixStore()}
    return {}


def check_choices(
    drafter: str,
    budget: str,
    draft_model: str | None = None,
    draft_tree: str | None = None,
    head: str | None = None,
    exit_layer: int | None = None,
) -> None:
    """Finds a wrong name or number before a model is loaded."""
    from .draft import TARGET_DRAFTERS, make_drafter
    from .draft.registry import HEAD_DRAFTERS, WITH_HEAD, check_drafter_name
    from .draft.tree_kind import tree_kind
    from .tune.budget import make_budget

    make_budget(budget)
    check_drafter_name(drafter, with_model=draft_model is not None)
    if head is not None and drafter not in HEAD_DRAFTERS + WITH_HEAD:
        takers = ", ".join(HEAD_DRAFTERS + WITH_HEAD)
        raise ValueError(f"--drafter {drafter} takes no head; those that take one are: {takers}")
    if head is not None and not Path(head).expanduser().is_dir():
        raise ValueError(f"no folder {head!r} with a head in it")
    if drafter in HEAD_DRAFTERS:
        _check_head(drafter, head, draft_tree)
    elif drafter in TARGET_DRAFTERS:
        if draft_tree is not None:
            raise ValueError(f"drafter {drafter!r} grows dynamic trees; leave --draft-tree out")
    elif draft_model is None:
        make_drafter(drafter, **({} if draft_tree is None else {"tree": draft_tree}))
    elif draft_tree is not None:
        tree_kind(draft_tree)
    if exit_layer is not None and drafter != "early_exit":
        raise ValueError("--exit-layer goes with --drafter early_exit")


def _check_head(drafter: str, head: str | None, draft_tree: str | None) -> None:
    if head is None:
        raise ValueError(f"--drafter {drafter} needs --head FOLDER")
    if draft_tree is not None:
        raise ValueError(f"drafter {drafter!r} grows its own trees; leave {draft_tree!r} out")


def check_specs(specs: Sequence[TreeSpec | None], draft_model: str | None, head: str | None) -> None:
    """The same for the methods of a benchmark."""
    trees = [spec for spec in specs if spec is not None]
    for spec in trees:
        own_model, own_head = draft_model if spec.with_model else None, head if spec.with_head else None
        check_choices(spec.drafter, spec.budget, own_model, spec.kind, own_head)
        if spec.with_model and draft_model is None:
            raise ValueError(f"method tree:{spec.drafter}+model needs --draft-model NAME")
        if spec.with_head and head is None:
            raise ValueError(f"method tree:{spec.drafter}+head needs --head FOLDER")
    if draft_model is not None and not any(spec.with_model for spec in trees):
        raise ValueError("no method drafts with --draft-model; name one: tree:model or tree:mixed+model")
    if head is not None and not any(spec.with_head for spec in trees):
        raise ValueError("no method drafts with --head; name one: tree:eagle or tree:mixed+head")


def drafter_options(
    draft_model: str | None,
    draft_tree: str | None,
    dtype: str,
    device: str | None,
    tokenizer: Any,
    head: str | None = None,
    exit_layer: int | None = None,
) -> dict[str, Any]:
    """The options of a named drafter; a draft model is loaded once, as the target was, and brings its tokenizer."""
    options: dict[str, Any] = {} if draft_tree is None else {"tree": draft_tree}
    if draft_model is not None:
        loaded, own_tokenizer = load_model(draft_model, dtype, device, None)
        options |= {"draft_model": loaded, "draft_tokenizer": own_tokenizer, "target_tokenizer": tokenizer}
    if head is not None:
        options["head"] = head
    if exit_layer is not None:
        options["exit_layer"] = exit_layer
    return options


def number_or_auto(budget: str) -> int | str:
    """A budget as the library takes it."""
    return int(budget) if budget.lstrip("-").isdigit() else budget
