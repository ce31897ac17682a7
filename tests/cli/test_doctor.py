"""`branchwise doctor`: what it finds, and what makes it fail."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner, Result

import branchwise
from branchwise.attention.native import native
from branchwise.cli import app
from branchwise.doctor import Finding, examine, machine, packages, self_test, storage
from branchwise.verify import Greedy, Verdict
from branchwise.verify.traversal import Traversal

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


@pytest.fixture(scope="module")
def whole() -> Result:
    return run("--json")


@pytest.mark.core
def test_everything_is_told_and_nothing_is_broken_here(whole: Result) -> None:
    assert whole.exit_code == 0, whole.output
    record = json.loads(whole.stdout)
    assert record["ok"] is True
    topics = [finding["topic"] for finding in record["findings"]]
    assert topics[:7] == ["packages", "processor", "bfloat16", "GPU", "CPU kernel", "GPU kernel", "cache folder"]
    assert topics[7:9] == ["default model", "draft heads"]
    assert topics[-2:] == ["greedy output", "sampled output"]
    says = {finding["topic"]: finding["says"] for finding in record["findings"]}
    assert f"branchwise {branchwise.__version__}" in says["packages"] and "torch" in says["packages"]
    assert "equal transformers' own" in says["greedy output"]
    assert "distance 0 from the model's law" in says["sampled output"]


def test_a_line_per_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding("one", "ok", "fine"), Finding("two", "absent", "not there"), Finding("three", "broken", "bad")]
    monkeypatch.setattr("branchwise.doctor.examine", lambda device: iter(found))
    result = run()
    assert result.exit_code == 1, "something is broken"
    assert result.stdout.splitlines() == [
        "ok     one             fine",
        "-      two             not there",
        "BROKEN three           bad",
    ]


def test_an_unusable_device_is_said_first() -> None:
    result = run("--device", "nowhere")
    assert result.exit_code == 2
    assert result.stderr.startswith("branchwise: device 'nowhere' cannot be used here") and result.stdout == ""


def test_findings_come_as_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr("branchwise.doctor.examination.machine", lambda: made.append("machine") or iter(()))
    next(iter(examine()))
    assert made == []


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for_users = set(project["optional-dependencies"]) - {"dev", "docs"}
    assert set(packages.EXTRAS) == for_users
    for name, extra in packages.EXTRAS.items():
        wanted = {Requirement(line).name.replace("-", "_") for line in project["optional-dependencies"][name]}
        assert set(extra.modules) == wanted, name


def test_a_missing_extra_is_absent_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = packages.find_spec
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "xgrammar" else real(name))
    found = {finding.topic: finding for finding in packages.extras()}
    assert found["extra grammar"].state == "absent"
    assert found["extra grammar"].says.endswith("pip install 'branchwise[grammar]'")


def test_an_old_or_missing_package_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["torch>=999", "no-such-package", "pytest>=1; extra == 'dev'", "numpy"]
    monkeypatch.setattr(packages.metadata, "requires", lambda name: asked)
    found = packages.core_packages()
    assert found.state == "broken"
    assert "no-such-package missing" in found.says and "pytest" not in found.says
    assert found.says.endswith("run: pip install 'torch>=999' 'no-such-package'")


def test_a_cache_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert storage.cache_folder(tmp_path / "file" / "cache").state == "broken"
    fresh = storage.cache_folder(tmp_path / "not" / "yet")
    assert fresh.state == "ok" and ": 0 MB, " in fresh.says
    assert not (tmp_path / "not").exists(), "looking makes nothing"


def test_an_absent_default_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    monkeypatch.delenv("BRANCHWISE_OFFLINE", raising=False)
    monkeypatch.setattr(storage, "check_can_convert", lambda model: None)
    assert storage.default_model().says.endswith("run: branchwise models fetch default")
    monkeypatch.setenv("BRANCHWISE_OFFLINE", "1")
    found = storage.default_model()
    assert found.state == "absent" and "BRANCHWISE_OFFLINE" in found.says


def test_no_compiler_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    native.cache_clear()
    try:
        found = machine.cpu_kernel()
    finally:
        native.cache_clear()
    assert found.state == "absent" and "there is no C compiler" in found.says


def test_a_wrong_rule_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each proof fails once: a greedy rule that takes the first child, a traversal that accepts whatever is drafted."""

    def first_child(self: Greedy, draft, law, coins) -> Verdict:
        children = draft.tree.children(0)
        return (
            Verdict((0, children[0]), int(law(children[0]).argmax())) if children else accept(self, draft, law, coins)
        )

    accept = Greedy.accept
    monkeypatch.setattr(Greedy, "accept", first_child)
    assert self_test.greedy_output("cpu").state == "broken"

    def first_path(self: Traversal, draft, law, coins) -> Verdict:
        path = [0]
        while draft.tree.children(path[-1]):
            path.append(draft.tree.children(path[-1])[0])
        return Verdict(tuple(path), coins.choice(law(path[-1])))

    monkeypatch.setattr(Traversal, "accept", first_path)
    assert self_test.enumerated_rule().state == "broken"


@pytest.mark.model
def test_speed_is_measured_on_the_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from branchwise.doctor import speed

    monkeypatch.setattr(speed, "NEW_TOKENS", 12)
    found = speed.measured_speed()
    assert found.state == "ok"
    assert found.says.startswith("default model in bfloat16: ") and "x plain decoding" in found.says
