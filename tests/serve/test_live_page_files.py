"""The page's files: types, caching, the policy that keeps everything else out, and no way in for markup."""

from __future__ import annotations

import re
from importlib.resources import files

import httpx
import pytest

from serve_rig import serving

PAGE = files("branchwise.serve").joinpath("page")
SCRIPTS = [entry for entry in PAGE.iterdir() if entry.name.endswith(".js")]
EVERYTHING = [entry for entry in PAGE.iterdir() if entry.is_file()]


@pytest.fixture(scope="module")
def page():
    with serving(api_key="secret") as server, httpx.Client(base_url=server.url) as client:
        yield client


def parts_of(html: str) -> list[str]:
    return re.findall(r'(?:href|src)="([^"]+)"', html)


def test_everything_it_names_is_there_with_its_type_and_may_be_kept(page):
    answer = page.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    parts = parts_of(answer.text)
    # what the modules import lies beside them
    folder = parts[0].rsplit("/", 1)[0]
    parts += [f"{folder}/{name}" for entry in SCRIPTS for name in re.findall(r'from "\./([^"]+)"', entry.read_text())]
    assert len(set(parts)) >= 10
    types = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    for part in set(parts):
        file = page.get(f"/{part}")
        assert file.status_code == 200, part
        assert file.headers["content-type"] == types[part.rsplit(".", 1)[1]]
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert file.headers["x-content-type-options"] == "nosniff"


def test_whoever_knows_the_page_is_not_sent_it_again(page):
    tag = page.get("/").headers["etag"]
    again = page.get("/", headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert page.get("/", headers={"If-None-Match": '"other"'}).status_code == 200


def test_heads_are_answered(page):
    head = page.head("/")
    assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 1000


def test_nothing_may_come_from_elsewhere(page):
    policy = dict(part.strip().split(" ", 1) for part in page.get("/").headers["content-security-policy"].split(";"))
    assert policy.pop("default-src") == "'none'"
    assert policy.pop("base-uri") == policy.pop("form-action") == policy.pop("frame-ancestors") == "'none'"
    assert set(policy.values()) == {"'self'"} and "script-src" in policy


@pytest.mark.parametrize("path", ["x/main.js", "{digest}/none.js", "{digest}/index.html", "{digest}/..%2fapp.py"])
def test_no_other_file_can_be_had(page, path):
    digest = parts_of(page.get("/").text)[0].split("/")[1]
    assert page.get("/page/" + path.format(digest=digest)).status_code == 404


def test_the_page_needs_no_key_and_the_api_does(page):
    assert page.get("/").status_code == 200
    assert page.get("/v1/models").status_code == 401
    assert page.get("/pages").status_code == 401
    assert page.get("/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_it_is_no_part_of_the_api(page):
    paths = page.get("/openapi.json", headers={"Authorization": "Bearer secret"}).json()["paths"]
    assert not any(path == "/" or path.startswith("/page") for path in paths)


@pytest.mark.parametrize("entry", EVERYTHING, ids=lambda entry: entry.name)
def test_no_outside_address_and_no_inline_script_or_style(entry):
    text = entry.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]+\.[a-z]", text)
    assert not re.search(
        r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", text if entry.name.endswith(".html") else ""
    )


@pytest.mark.parametrize("entry", SCRIPTS, ids=lambda entry: entry.name)
def test_text_never_becomes_markup(entry):
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "Function("):
        assert way not in entry.read_text()
