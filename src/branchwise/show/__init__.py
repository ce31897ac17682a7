"""Making steps visible: trees as text, text as it comes. Knows finished steps and tokens; runs nothing."""

from .live import LiveText
from .text import draw_step, draw_tree

__all__ = ["LiveText", "draw_step", "draw_tree"]
