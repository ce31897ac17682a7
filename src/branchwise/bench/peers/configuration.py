"""The names of what is compared: ``PEER:METHOD``.

    transformers       plain, lookup-N (prompt_lookup_num_tokens), early-exit (assistant_early_exit)
    llama.cpp          plain, lookup-N (drafts of N after the last two tokens, "ngram-simple"), ngram-cache
    openvino-genai     plain, lookup-N (prompt_lookup with num_assistant_tokens)
    branchwise         on transformers: plain, DRAFTER-BUDGET as in `methods` (mixed-17, auto-17, mixed+head-9, auto)
    branchwise/ENGINE-FORMAT
                       the same on the engine native or openvino, weights f32, bf16, int8 or int4

Knows names only; no library is imported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..methods import TreeSpec

OWN = "branchwise"
#: engine and weights, as they stand behind the name of this library
COMPILED = tuple(f"{engine}-{kept}" for engine in ("native", "openvino") for kept in ("f32", "bf16", "int8", "int4"))
#: so many last tokens are looked up by llama.cpp; transformers looks up as many at most
LOOKUP_NGRAM = 2
#: those whose weights are read from a GGUF file
FROM_GGUF = ("llama.cpp", "openvino-genai")

#: those whose methods each have a process: with the threads of two servers in one, OpenMP waits sleeping instead of
#: busily between the parts of a forward, and llama.cpp takes twice the time
ALONE = ("llama.cpp",)

#: peer -> what is measured when the peer alone is named
DEFAULT_METHODS: dict[str, tuple[str, ...]] = {
    "transformers": ("plain", "lookup-3", "lookup-10", "early-exit"),
    "llama.cpp": ("plain", "lookup-3", "lookup-10", "ngram-cache"),
    "openvino-genai": ("plain", "lookup-3", "lookup-5"),
    OWN: ("plain", "auto-17", "auto"),
    **{f"{OWN}/{compiled}": ("plain", "auto-17", "auto-32", "auto") for compiled in COMPILED},
}
#: peers of a run for which none are named
DEFAULT_PEERS = ("transformers", "llama.cpp", "openvino-genai", OWN, f"{OWN}/native-bf16", f"{OWN}/native-int4")

_METHODS = {
    "transformers": re.compile(r"plain|lookup-[1-9]\d*|early-exit"),
    "llama.cpp": re.compile(r"plain|lookup-[1-9]\d*|ngram-cache"),
    "openvino-genai": re.compile(r"plain|lookup-[1-9]\d*"),
}


@dataclass(frozen=True)
class Configuration:
    """One line of the table.

    Attributes:
        peer: the library, and for this one the engine.
        method: how it decodes.
    """

    peer: str
    method: str

    @property
    def name(self) -> str:
        """As it is written."""
        return f"{self.peer}:{self.method}"

    @property
    def worker(self) -> str:
        """What names the process that it runs in; those of a peer share one, but for some peers."""
        return self.name if self.peer in ALONE else self.peer

    @property
    def is_own(self) -> bool:
        """Whether this library runs it."""
        return self.peer.partition("/")[0] == OWN

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.method == "plain"

    @property
    def spec(self) -> TreeSpec | None:
        """Drafter and budget, of this library's configurations that draft."""
        return tree_spec(self.method) if self.is_own and not self.is_plain else None


def tree_spec(method: str) -> TreeSpec:
    """Drafter and budget of a method of this library; the budget is "auto" where none is written."""
    drafter, dash, _ = method.rpartition("-")
    spec = TreeSpec.of(f"tree:{method}" if dash and drafter else f"tree:{method}-auto", OWN)
    assert spec is not None
    return spec


def configurations(words: Sequence[str], *, with_head: bool = False, with_model: bool = False) -> list[Configuration]:
    """What is to be measured.

    Args:
        words: peers, for which their `DEFAULT_METHODS` are taken, and ``PEER:METHOD``; `DEFAULT_PEERS` when empty.
        with_head: the drafters in default methods of this library get the trained head.
        with_model: and the draft model.

    Raises:
        ValueError: no peer or method has that name (the message lists those that exist), or one comes twice.
    """
    extra = ("+head" if with_head else "") + ("+model" if with_model else "")
    found: list[Configuration] = []
    for word in words or DEFAULT_PEERS:
        peer, colon, method = word.partition(":")
        if peer not in DEFAULT_METHODS:
            raise ValueError(f"no peer is named {peer!r}; there are {', '.join(DEFAULT_METHODS)}")
        if colon:
            found.append(_checked(Configuration(peer, method)))
            continue
        for default in DEFAULT_METHODS[peer]:
            own = Configuration(peer, default).is_own
            found.append(Configuration(peer, _with_extra(default, extra) if own else default))
    twice = sorted({one.name for one in found if found.count(one) > 1})
    if twice:
        raise ValueError(f"given twice: {', '.join(twice)}")
    return found


def _with_extra(method: str, extra: str) -> str:
    """``auto-17`` -> ``auto+head-17``."""
    if method == "plain":
        return method
    drafter, dash, budget = method.partition("-")
    return f"{drafter}{extra}{dash}{budget}"


def _checked(asked: Configuration) -> Configuration:
    known = _METHODS.get(asked.peer)
    if known is not None and not known.fullmatch(asked.method):
        shown = known.pattern.replace(r"[1-9]\d*", "N").replace("|", ", ")
        raise ValueError(f"{asked.peer} has no method {asked.method!r}; there are {shown}")
    if known is None and not asked.method:
        raise ValueError(
            f"{asked.name!r} names no method; write plain, or a drafter and a budget: {asked.peer}:mixed-17"
        )
    return asked
