"""Drafters by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import signature
from typing import Any

from transformers import PreTrainedModel

from ..target.protocol import Target
from ..target.sharded import is_sharded
from ..tree import StaticShape
from .asking import AskRule
from .drafter_source import DrafterSource
from .early_exit import EarlyExitDrafter
from .mixed import MixedDrafter
from .ngram import NgramSource
from .none import NoneDrafter
from .protocol import Drafter
from .recycling import RecyclingSource
from .sampled import SampledDrafter
from .shipped import ShippedDrafter, ShippedHead, find_head
from .small_model_by_name import small_model_drafter
from .source import CandidateSource
from .static import StaticDrafter
from .suffix import SuffixDrafter
from .suffix_store import SuffixStore

#: for the static drafter where no shape is given: 29 nodes, wide at the root and three tokens deep at the most
DEFAULT_SHAPE = StaticShape.kary((4, 2, 2))


def _ngram(tree: str = "best_first") -> Drafter:
    return MixedDrafter([NgramSource()], name="ngram", width=_width(tree))


def _recycling(tree: str = "best_first", **options: Any) -> Drafter:
    return MixedDrafter([RecyclingSource(**options)], name="recycling", width=_width(tree))


def _mixed(
    tree: str | None = None,
    draft_model: Any = None,
    head: str | ShippedHead | None = None,
    target: Target | PreTrainedModel | None = None,
    ask: AskRule | None = None,
    levels: int | str = "auto",
    **options: Any,
) -> MixedDrafter:
    """N-grams, recycling and, where given, a trained head and a small model, whose trees are of the kind ``tree``.

    ``ask`` decides when those two are asked, ``levels`` how deep an EAGLE head's tree is.
    """
    asked: list[Drafter] = []
    if head is not None:
        asked.append(_head_in_a_mix(head, _model_of(target), levels))
    elif levels != "auto":
        raise ValueError(f"levels={levels!r} are those of a head's tree, but there is none: give head=...")
    if draft_model is not None:
        asked.append(small_model_drafter(draft_model, target=target, tree=tree or "dynamic", **options))
    elif options:
        raise ValueError(f"{sorted(options)} are options of a draft model, but there is none: give draft_model=...")
    if ask is not None and not asked:
        raise ValueError("ask decides when a draft model or a head is asked, but there is neither")
    width = _width(tree or "best_first", any_model=draft_model is not None)
    return MixedDrafter([NgramSource(), RecyclingSource(), *map(DrafterSource, asked)], width=width, ask=ask)


def _auto(
    target: Target | PreTrainedModel | None = None,
    head: str | None = None,
    draft_model: Any = None,
    **options: Any,
) -> MixedDrafter:
    """As `_mixed`; where neither head nor model is given, with the head that was shipped for this target, if any."""
    if head is not None or draft_model is not None or not options.keys() <= {"tree", "ask", "levels"}:
        return _mixed(target=target, head=head, draft_model=draft_model, **options)
    shipped = find_head(target)
    return _mixed(options.get("tree")) if shipped is None else _mixed(target=target, head=shipped, **options)


def _head_in_a_mix(head: str | ShippedHead, model: PreTrainedModel, levels: int | str) -> Drafter:
    if isinstance(head, ShippedHead):
        return ShippedDrafter(head, model, levels=levels)
    from .head import head_drafter

    return head_drafter(head, model, levels=levels)


def _width(tree: str, any_model: bool = False) -> int | None:
    """Most children per node."""
    if tree not in ("best_first", "chain") and not any_model:
        raise ValueError(f"tree must be 'best_first' or 'chain' without a draft model, got {tree!r}")
    return 1 if tree == "chain" else None


def _suffix(store: SuffixStore | None = None, tree: str = "best_first") -> Drafter:
    return SuffixDrafter(store, width=_width(tree))


def _static(shape: StaticShape = DEFAULT_SHAPE, source: CandidateSource | MixedDrafter | None = None) -> Drafter:
    return StaticDrafter(_mixed() if source is None else source, shape)


def _sampled(width: int = 3, sharpness: float = 1.0, draft_model: Any = None, **options: Any) -> Drafter:
    if draft_model is None and "tree" in options:
        raise ValueError(f"drafter 'sampled' grows its own trees; leave tree={options['tree']!r} out")
    return SampledDrafter(_mixed(draft_model=draft_model, **options), width=width, sharpness=sharpness)


# heads are imported when asked for: with them come transformers' rotary tables, which few runs need


def _eagle(
    target: Target | PreTrainedModel,
    head: str | None = None,
    depth: int | str = "auto",
    width: int = 8,
    allow_pickle: bool = False,
) -> Drafter:
    from .eagle import EagleDrafter

    folder = _folder("eagle", head)
    return EagleDrafter.load(folder, _model_of(target), depth=depth, width=width, allow_pickle=allow_pickle)


def _medusa(
    target: Target | PreTrainedModel,
    head: str | None = None,
    choices: Iterable[Sequence[int]] | None = None,
    allow_pickle: bool = False,
) -> Drafter:
    from .medusa import MedusaDrafter

    folder = _folder("medusa", head)
    return MedusaDrafter.load(folder, _model_of(target), choices=choices, allow_pickle=allow_pickle)


def _block(
    target: Target | PreTrainedModel,
    head: str | None = None,
    depth: int | None = None,
    allow_pickle: bool = False,
) -> Drafter:
    from .block import BlockDrafter

    return BlockDrafter.load(_folder("block", head), _model_of(target), depth=depth, allow_pickle=allow_pickle)


def _folder(drafter: str, head: str | None) -> str:
    if head is None:
        raise ValueError(
            f"drafter {drafter!r} needs the folder of a trained head: head=FOLDER, on the command line --head"
        )
    return head


def _model_of(target: Target | PreTrainedModel | None) -> PreTrainedModel:
    model = target if isinstance(target, PreTrainedModel) else getattr(target, "model", None)
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"a head needs a transformers model as target, got a {type(target).__name__}")
    if is_sharded(model):
        raise ValueError(
            "a head reads the target's embeddings and output layer, which are spread over several processes here; use "
            "a drafter that needs nothing of the target's weights (auto, mixed, ngram, suffix, model, ...)"
        )
    return model


def _shown(spec: object) -> str:
    """A short word for what was given: a class by its name, a model by its type."""
    if isinstance(spec, type):
        return f"the class {spec.__name__}"
    return repr(spec) if spec is None or isinstance(spec, (int, float)) else f"a {type(spec).__name__}"


#: name -> how to make one; "auto" is the best drafter that needs nothing but the target, and what was shipped for it
DRAFTERS: dict[str, Callable[..., Drafter]] = {
    "none": NoneDrafter,
    "ngram": _ngram,
    "recycling": _recycling,
    "suffix": _suffix,
    "mixed": _mixed,
    "model": small_model_drafter,
    "static": _static,
    "sampled": _sampled,
    "auto": _auto,
}
#: names whose drafters take a ``draft_model``
WITH_MODEL = ("model", "mixed", "sampled", "auto")

#: name -> how to make one that works inside a target, for that target
TARGET_DRAFTERS: dict[str, Callable[..., Drafter]] = {
    "eagle": _eagle,
    "medusa": _medusa,
    "block": _block,
    "early_exit": EarlyExitDrafter,
}
#: those that are made from a trained head
HEAD_DRAFTERS = ("eagle", "medusa", "block")
#: those that take one, of any kind, beside what they have
WITH_HEAD = ("mixed", "sampled", "auto")


def check_drafter_name(name: str, with_model: bool = False) -> None:
    """Finds a wrong name, or a draft model too many or too few, before anything is loaded.

    Raises:
        ValueError: says what is wrong and what there is.
    """
    if name not in DRAFTERS and name not in TARGET_DRAFTERS:
        raise ValueError(f"no drafter is named {name!r}; there are {', '.join([*DRAFTERS, *TARGET_DRAFTERS])}")
    if with_model and name not in WITH_MODEL:
        raise ValueError(f"drafter {name!r} takes no draft model; those that do are {', '.join(WITH_MODEL)}")
    if name == "model" and not with_model:
        small_model_drafter()


def make_drafter(spec: str | Drafter, *, target: Target | PreTrainedModel | None = None, **options: Any) -> Drafter:
    """The drafter named ``spec``, or ``spec`` itself when it is one already.

    Args:
        spec: a name in `DRAFTERS` or `TARGET_DRAFTERS`, or an instance.
        target: the target of the loop, or its model, for those that work inside it.
        options: passed to the named drafter; an instance takes none.

    Raises:
        ValueError: no drafter has that name (the message lists those that exist), options came with an instance or do
            not fit, or the named drafter needs a target and got none.
    """
    if not isinstance(spec, str):
        if isinstance(spec, type) or not all(hasattr(spec, part) for part in ("start", "propose", "observe")):
            raise ValueError(
                f"a drafter is a name ({', '.join([*DRAFTERS, *TARGET_DRAFTERS])}) or an object with start, propose "
                f"and observe, got {_shown(spec)}; a small model goes in as drafter='model', "
                "drafter_options={'draft_model': ...}"
            )
        if options:
            raise ValueError(f"a ready-made drafter takes no options, got {sorted(options)}")
        return spec
    check_drafter_name(spec, with_model="draft_model" in options)
    needs_target = spec in TARGET_DRAFTERS or (spec in WITH_HEAD and options.get("head") is not None)
    takes_target = needs_target or spec == "auto" or options.get("draft_model") is not None
    if needs_target and target is None:
        raise ValueError(f"drafter {spec!r} works inside a target: give make_drafter the target that will generate")
    if spec in TARGET_DRAFTERS:
        make: Callable[..., Drafter] = partial(TARGET_DRAFTERS[spec], target)
    else:
        make = partial(DRAFTERS[spec], target=target) if takes_target else DRAFTERS[spec]
    try:
        signature(make).bind(**options)
    except TypeError as error:
        raise ValueError(f"drafter {spec!r} has no such option: {error}") from error
    return make(**options)
