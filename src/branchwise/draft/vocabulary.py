"""Whether two tokenizers mean the same by a token id. Knows their vocabularies; runs nothing."""

from __future__ import annotations

from typing import Any

#: rows that two models with one tokenizer may differ by: vocabularies are padded to round numbers
PADDING_IDS = 1024


def disagreement(tokenizer: Any, target_tokenizer: Any) -> str | None:
    """What the two tokenizers disagree on, or None when every id that both know stands for the same token.

    A vocabulary may be longer than the other (padding, added tokens): ids only one side knows are never drafted, or
    never produced by the target.
    """
    own = {index: token for token, index in tokenizer.get_vocab().items()}
    other = {index: token for token, index in target_tokenizer.get_vocab().items()}
    shared = own.keys() & other.keys()
    different = sorted(index for index in shared if own[index] != other[index])
    if shared and not different:
        return None
    example = different[0] if different else 0
    return (
        f"the drafter's tokenizer disagrees with the target's on {len(different)} of {len(shared)} shared ids (id "
        f"{example}: {own.get(example)!r} against {other.get(example)!r})"
    )


def check_shared_vocabulary(tokenizer: Any, target_tokenizer: Any) -> None:
    """Raises ValueError unless every id that both tokenizers know stands for the same token."""
    found = disagreement(tokenizer, target_tokenizer)
    if found is not None:
        raise ValueError(f"{found}; use one with the target's tokenizer, or a TextBridge")


def check_vocabulary_sizes(own: int, target: int) -> None:
    """Raises ValueError when the ids of two models cannot be one vocabulary; for models without tokenizers.

    Args:
        own: rows of the drafter's output.
        target: rows of the target's.
    """
    if abs(own - target) > PADDING_IDS:
        raise ValueError(
            f"the drafter writes {own} token ids and the target {target}: they cannot share a tokenizer. Name the "
            "drafter with its tokenizer (draft_model=..., draft_tokenizer=..., target_tokenizer=...) to draft through "
            "text, or use a drafter with the target's tokenizer"
        )
