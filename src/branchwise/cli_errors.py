"""Errors as one line for somebody at the command line: what happened, to which value, and what to do."""

from __future__ import annotations

import sys


def message_of(error: Exception) -> str | None:
    """One line for an error that the user can do something about; None for a fault of this program.

    ValueError, OSError and ImportError are raised with the value and the remedy in their text. Lack of memory comes
    from torch in several forms.
    """
    if _is_out_of_memory(error):
        return (
            f"out of memory ({_one_line(error)[:160]}); take a smaller model, --dtype bfloat16, a shorter prompt, "
            "fewer --max-new-tokens, or a machine with more"
        )
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (ValueError, OSError, ImportError)):
        return _one_line(error) or type(error).__name__
    return None


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")  # without torch nothing of torch can have failed
    if torch is None or not isinstance(error, RuntimeError):
        return False
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "not enough memory" in str(error)
        or "allocate memory" in str(error)
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
