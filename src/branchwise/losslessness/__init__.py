"""A test kit for verification rules: exact enumeration instead of statistics.

    from branchwise.losslessness import KINDS, SHAPES, check_rule

    report = check_rule(my_rule, KINDS["without replacement"], SHAPES[1])
    assert report.total_variation == 0

``my_rule`` is a callable ``(draft, law, coins) -> Verdict``, or an object with such an ``accept``. Every draft and
every fall of the coins is played on toy models over three or four tokens; the law of what is written is compared with
the target's. In rationals a lossless rule has distance 0, not 1e-16. The kit carries the mistakes that were made before
(`CONTROLS`), and `run_table` shows that it finds each of them out.
"""

from .check import Report, check_rule
from .controls import CONTROLS, Control
from .drafts import KINDS, SHAPES, Shape, kary
from .enumerate import EnumeratingCoins, outcomes
from .plain import Plain
from .table import Row, expectation, render, run_grid, run_table
from .toys import ToyPair, random_pair, toy_pairs

__all__ = [
    "CONTROLS", "Control", "EnumeratingCoins", "KINDS", "Plain", "Report", "Row", "SHAPES", "Shape", "ToyPair",
    "check_rule", "expectation", "kary", "outcomes", "random_pair", "render", "run_grid", "run_table", "toy_pairs",
]  # fmt: skip
