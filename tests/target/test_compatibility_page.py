"""The documented list of models is the tested one."""

from __future__ import annotations

from compatibility import PAGE, render


def test_the_page_lists_what_the_zoo_runs():
    assert PAGE.read_text() == render(), "run: python tests/compatibility.py"
