"""Making steps visible: trees as text, SVG and HTML; text as it comes. Knows finished steps, runs nothing."""

from .live import LiveText
from .step_json import generation_step, step_json, tree_json
from .svg import mask_svg, step_mask_svg, step_svg, tree_svg
from .text import draw_step, draw_tree

__all__ = [
    "LiveText",
    "draw_step",
    "draw_tree",
    "generation_step",
    "mask_svg",
    "step_json",
    "step_mask_svg",
    "step_svg",
    "tree_json",
    "tree_svg",
]
