"""Why transformers could not load a model, in one sentence with a remedy.

transformers writes for developers: a list of two hundred classes, or several lines about tokens and revisions. Here its
messages are recognised by their wording; one that is not recognised is passed on as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from branchwise.hub.errors import ModelNotFound, ModelNotLoadable
from branchwise.hub.named_models import registered_names

#: what `from_pretrained` raises for reasons outside this library
LOAD_ERRORS = (OSError, ValueError, SafetensorError)


def explained(word: str, error: Exception) -> Exception | None:
    """The error to raise instead of ``error``; None where its own message is the best there is.

    Args:
        word: the folder or Hub id that was asked for.
        error: one of `LOAD_ERRORS`.
    """
    text = " ".join(str(error).split())
    if "Unrecognized configuration class" in text:
        kind = re.search(r"(\w+?)(?:Config)?'>", text)
        named = f"is a {kind.group(1)} model" if kind else "is a model"
        return ModelNotLoadable(
            f"{word!r} {named}, which transformers cannot load as a causal language model; branchwise speeds up "
            "decoder-only language models: choose one of those (docs/compatibility.md)"
        )
    if "trust_remote_code" in text:
        return ModelNotLoadable(
            f"{word!r} brings code of its own, which is not run from here: load it in Python with "
            "trust_remote_code=True and give the model to branchwise.Speculator"
        )
    if "does not recognize this architecture" in text:
        return ModelNotLoadable(f"{_architecture(text, word)}: pip install --upgrade transformers")
    if Path(word).is_dir():
        return _about_folder(word, text, error)
    return _about_hub(word, text, error)


def check_whole(word: str, report: Mapping[str, Any]) -> None:
    """Raises ModelNotLoadable where the checkpoint lacks tensors of the model: they would stay at random values.

    Args:
        word: the folder or Hub id that was asked for.
        report: what transformers says of the loading (``output_loading_info=True``).
    """
    for name, found, wanted in sorted(report.get("mismatched_keys", ())):
        raise ModelNotLoadable(
            f"the weights in {word!r} do not fit its config.json: {name} has the shape {list(found)}, the config asks "
            f"for {list(wanted)}; copy both from one place"
        )
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        named = ", ".join(missing[:2]) + (f" and {len(missing) - 2} more" if len(missing) > 2 else "")
        raise ModelNotLoadable(
            f"the weights in {word!r} lack {named}, which would be left at random values; give a checkpoint that was "
            "saved whole and with its language model head"
        )


def _architecture(text: str, word: str) -> str:
    import transformers

    kind = re.search(r"model type `([^`]+)`", text)
    named = f"{kind.group(1)!r}" if kind else "its architecture"
    return f"{word!r} needs {named}, which transformers {transformers.__version__} does not know"


def _about_folder(word: str, text: str, error: Exception) -> Exception | None:
    folder = Path(word)
    if not (folder / "config.json").is_file():
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:4]) or "nothing"
        return ModelNotFound(
            f"the folder {word!r} holds no config.json but {held}; give the folder that save_pretrained wrote"
        )
    if "valid JSON file" in text or "Unrecognized model in" in text:
        return ModelNotLoadable(
            f"the config.json in {word!r} is damaged or incomplete ({text[:160]}); copy or download it again"
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        return ModelNotFound(f"the folder {word!r} holds no weights (*.safetensors); copy them beside its config.json")
    if isinstance(error, SafetensorError):
        return ModelNotLoadable(f"the weights in {word!r} are damaged ({text}); copy or download them again")
    return None


def _about_hub(word: str, text: str, error: Exception) -> Exception | None:
    ready = f"or take one of {', '.join(registered_names())}, or a folder (./name)"
    if "gated repo" in text:
        return ModelNotFound(f"{word!r} is a gated model: accept its terms on its page, then run `hf auth login`")
    if "couldn't connect" in text or "connection error" in text or "offline" in text.lower():
        return ModelNotFound(
            f"{word!r} is not on this machine and the Hub cannot be reached: "
            f"check the network and HF_HUB_OFFLINE, {ready}"
        )
    if "not a valid model identifier" in text or "Repo id must" in text:
        return ModelNotFound(f"neither this machine nor the Hub has a model {word!r}: write owner/name, {ready}")
    return None
