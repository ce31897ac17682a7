"""The page of a generation: what it holds, how it is escaped, and where it goes."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path

import pytest

from branchwise.show import display
from branchwise.show.page import page_html
from branchwise.show.page_data import page_data, text_pieces
from branchwise.tree import TokenGraph, TokenTree
from show_rig import DRAFT, RECORD, WORDS, Words, generation_of, random_generation
from tiny_folder import character_tokenizer

pytestmark = pytest.mark.core


def data_in(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_data_by_hand() -> None:
    data = page_data(generation_of([RECORD]), budget=9)
    assert data["words"] == [[0, "the", 3], [1, "·cat", 4], [2, "·dog", 4], [3, "·ran", 4], [4, "·sat", 4], [5, "↵", 1]]
    assert data["sources"] == ["ngram", "recycling"]
    (step,) = data["steps"]
    assert step["parents"] == [-1, 0, 0, 1, 1] and step["path"] == [0, 1, 4] and step["bonus"] == 5
    assert step["sources"] == [0, 1, 1, 0]
    assert step["draft"] == [9000, 2500, 1000, 5000] and step["target"] == [7500, 1250, -1, 5000]
    assert step["pieces"] == [" cat", " sat", "\n"] and step["committed"] == 2
    assert step["ms"] == [1.0, 30.0, 2.0, 0.5, 0.1]
    assert data["prompt"] == WORDS[6] + WORDS[7] + WORDS[0] and data["budget"] == 9


def test_words_are_stored_once_and_one_source_stands_for_all() -> None:
    bare = DRAFT.deterministic(DRAFT.tree, "ngram")
    record = type(RECORD)(bare, RECORD.verdict, RECORD.tokens)
    data = page_data(generation_of([record] * 50))
    assert len(data["words"]) == 6
    assert data["steps"][49]["sources"] == [0] and data["steps"][49]["draft"] == data["steps"][49]["target"] == []


def test_pieces_add_up_to_the_text_and_hold_whole_characters() -> None:
    class Bytes:
        """Token n is byte n."""

        def decode(self, ids: list[int], **_: object) -> str:
            return bytes(ids).decode("utf-8", errors="replace")

    tokens = list("añ日😀".encode())
    assert text_pieces(tokens, Bytes()) == ["a", "", "ñ", "", "", "日", "", "", "", "😀"]
    assert text_pieces(tokens[:-1], Bytes())[-1] == "\N{REPLACEMENT CHARACTER}"
    assert text_pieces([4, 5], None) == ["4 ", "5 "]


def test_no_token_breaks_out_of_its_place() -> None:
    page = page_html(random_generation(5, 8, 30), title="<b>&", facts={"model": "</script>"})
    assert page.count("<script") == 3 and page.count("</script>") == 3
    assert "<title>&lt;b&gt;&amp;</title>" in page
    assert "<img" not in page and "onerror" in page, "the word is there, as data"
    data = data_in(page)
    assert data["facts"][-1] == ["model", "</script>"]
    spoken = "".join("".join(step["pieces"]) for step in data["steps"])
    assert spoken == Words().decode(random_generation(5, 8, 30).tokens)


def test_the_page_is_one_file() -> None:
    page = page_html(generation_of([RECORD]))
    assert "default-src 'none'" in page
    without_data = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    addresses = re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)|(https?://[^\s"\']+)', without_data)
    assert {part for found in addresses for part in found} - {""} == {"data:,", "http://www.w3.org/2000/svg"}


def test_a_large_generation_stays_small() -> None:
    page = page_html(random_generation(1, 200, 256))
    nodes = 200 * 256
    assert len(page) < 20 * nodes + 100_000


def test_a_first_step_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no step 2: the generation has 1, numbered from 1"):
        page_html(generation_of([RECORD]), first=1)


def test_show_writes_the_page_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(display.webbrowser, "open", lambda address: opened.append(address) or True)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(display.sys, "platform", "linux")
    monkeypatch.setattr(display.tempfile, "tempdir", str(tmp_path))
    generation = generation_of([RECORD])

    asked = generation.show(tmp_path / "page.html")
    assert asked == tmp_path / "page.html" and data_in(asked.read_text(encoding="utf-8"))["steps"]
    temporary = generation.show()
    assert temporary is not None and temporary.parent == tmp_path and temporary.suffix == ".html"
    assert opened == [], "there is no desktop"
    monkeypatch.setenv("DISPLAY", ":0")
    on_desktop = generation.show()
    assert on_desktop is not None and opened == [on_desktop.as_uri()]


def test_a_page_is_not_written_under_the_name_of_a_picture(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"show\(\) writes one HTML page, got .*step\.svg'"):
        generation_of([RECORD]).show(tmp_path / "step.svg")
    assert list(tmp_path.iterdir()) == []


def test_in_a_notebook_it_is_displayed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    ipython = types.ModuleType("IPython")
    # a module made for the test
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    shower = types.ModuleType("IPython.display")
    # likewise
    shower.HTML = lambda text: text  # type: ignore[attr-defined]
    # likewise
    shower.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shower)
    assert generation_of([RECORD]).show() is None
    assert len(shown) == 1 and shown[0].startswith("<iframe")
    shell.config = {}  # IPython in a terminal
    assert not display.in_notebook()


def test_what_notebooks_show_of_trees_and_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = TokenGraph((5, 6, 7, 8), [(0, 1), (0, 2), (1, 3), (2, 3)])
    for tree in (DRAFT.tree, graph, DRAFT):
        assert tree._repr_html_().count("<svg") == 2
    assert TokenTree.from_chain(0, range(200))._repr_html_().count("<svg") == 1
    frame = generation_of([RECORD])._repr_html_()
    assert frame.count("<") == 2 and "sandbox=" in frame, "one element; all of the page is escaped inside it"
    monkeypatch.setattr(display, "NOTEBOOK_BYTES", 1000)
    assert "<iframe" not in generation_of([RECORD])._repr_html_()


def test_a_generation_without_a_tokenizer_or_with_a_real_one() -> None:
    generation = generation_of([RECORD], character_tokenizer())
    assert data_in(page_html(generation))["words"][3][1] == "<|user|>"
    bare = type(generation)(**{**vars(generation), "tokenizer": None})
    data = data_in(page_html(bare))
    assert data["prompt"] == "" and data["words"][1] == [1, "1", 1] and data["steps"][0]["pieces"] == ["1 ", "4 ", "5 "]
