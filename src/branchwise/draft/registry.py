"""Drafters by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .mixed import MixedDrafter
from .ngram import NgramSource
from .none import NoneDrafter
from .protocol import Drafter
from .recycling import RecyclingSource
from .sampled import SampledDrafter


def _ngram() -> Drafter:
    return MixedDrafter([NgramSource()], name="ngram")


def _recycling(**options: Any) -> Drafter:
    return MixedDrafter([RecyclingSource(**options)], name="recycling")


def _mixed() -> MixedDrafter:
    return MixedDrafter([NgramSource(), RecyclingSource()])


def _sampled(**options: Any) -> Drafter:
    return SampledDrafter(_mixed(), **options)


#: name -> how to make one; "auto" is the best drafter that needs nothing but the target
DRAFTERS: dict[str, Callable[..., Drafter]] = {
    "none": NoneDrafter,
    "ngram": _ngram,
    "recycling": _recycling,
    "mixed": _mixed,
    "sampled": _sampled,
    "auto": _mixed,
}


def make_drafter(spec: str | Drafter, **options: Any) -> Drafter:
    """The drafter named ``spec``, or ``spec`` itself when it is one already.

    Args:
        spec: a name in `DRAFTERS`, or an instance.
        options: passed to the named drafter; an instance takes none.

    Raises:
        ValueError: no drafter has that name (the message lists those that exist), or options came with an instance.
    """
    if not isinstance(spec, str):
        if options:
            raise ValueError(f"a ready-made drafter takes no options, got {sorted(options)}")
        return spec
    if spec not in DRAFTERS:
        raise ValueError(f"no drafter is named {spec!r}; there are {', '.join(DRAFTERS)}")
    return DRAFTERS[spec](**options)
