"""Numbers as a reader wants them."""

from __future__ import annotations

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def percent(share: float) -> str:
    """A share."""
    return f"{100 * share:.1f} %"


def tiny(value: float) -> str:
    """A number that may be very small: ``2.1·10⁻⁷``; from a hundredth on as it is."""
    if value == 0 or abs(value) >= 0.01:
        return f"{value:.2g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(_RAISED)}"


def difference(value: float) -> str:
    """A difference of logits relative to their spread."""
    return "exactly 0" if value == 0 else f"{tiny(value)} of the spread of the logits"


def megabytes(count: float) -> str:
    """Bytes."""
    return f"{count / 1e6:.2f} MB"


def counted(number: int, noun: str) -> str:
    """1 prompt, 2 prompts."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
