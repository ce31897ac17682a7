"""Curves on disk: found again, never trusted half, whole at any moment, and no harm where nothing can be written."""

from __future__ import annotations

import json
import logging
import threading

import pytest
import torch

from branchwise.target import HuggingFaceTarget
from branchwise.tune.cost_table import Column, CostTable
from branchwise.tune.curve_key import curve_key
from branchwise.tune.curve_store import CurveStore
from zoo import tiny_llama

pytestmark = pytest.mark.core

TABLE = CostTable((Column(256, (1, 8, 16), (0.01, 0.011, 0.018)),))
KEY = {"engine": "transformers", "threads": 2, "weights": (3, 4)}


def test_kept_and_found_again(tmp_path):
    store = CurveStore(KEY, tmp_path / "new" / "folder")
    assert store.load() is None
    assert store.save(TABLE)
    assert CurveStore(KEY, tmp_path / "new" / "folder").load() == TABLE
    assert CurveStore({**KEY, "threads": 4}, tmp_path / "new" / "folder").load() is None
    assert [file.suffix for file in store.path.parent.iterdir()] == [".json"], "nothing half written is left"


def test_the_default_place_is_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    CurveStore(KEY).save(TABLE)
    assert len(list((tmp_path / "cost_curves").iterdir())) == 1


WHOLE = json.dumps(TABLE.as_dict({**KEY, "weights": [3, 4]}))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe",
        WHOLE[:-20].encode(),
        WHOLE.replace("0.011", "NaN").encode(),
        WHOLE.replace("0.011", "-1").encode(),
        WHOLE.replace('"threads": 2', '"threads": 8').encode(),
        WHOLE.replace("table/1", "table/2").encode(),
        ("[" * 100_000).encode(),
        b"null",
    ],
    ids=["empty", "bytes", "cut", "nan", "negative", "another machine", "another schema", "nested", "null"],
)
def test_what_is_damaged_or_foreign_is_ignored_with_one_note_and_rewritten(tmp_path, caplog, content):
    store = CurveStore(KEY, tmp_path)
    store.path.write_bytes(content)
    with caplog.at_level(logging.DEBUG, "branchwise"):
        assert store.load() is None
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    store.add(TABLE.columns[0])
    assert store.load() == TABLE


def test_a_whole_file_of_this_key_is_taken(tmp_path):
    """The damage above is what was refused, not the file as such."""
    store = CurveStore(KEY, tmp_path)
    store.path.write_text(WHOLE)
    assert store.load() == TABLE


def test_what_was_learned_is_added_and_what_was_measured_stays(tmp_path):
    store = CurveStore(KEY, tmp_path)
    store.save(TABLE)
    store.add(Column(256, (1,), (9.0,)))
    assert store.load() == TABLE
    store.add(Column(2048, (1, 8), (0.02, 0.03)))
    assert store.load().contexts == (256, 2048)


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    store = CurveStore(KEY, tmp_path / "file" / "folder")
    with caplog.at_level(logging.DEBUG, "branchwise"):
        assert store.load() is None
        assert not store.save(TABLE)
        store.add(TABLE.columns[0])


def test_a_failed_write_leaves_the_old_curve_and_no_rubbish(tmp_path, monkeypatch):
    store = CurveStore(KEY, tmp_path)
    store.save(TABLE)

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    assert not store.save(CostTable((Column(1, (1,), (1.0,)),)))
    assert [file.name for file in tmp_path.iterdir()] == [store.path.name]
    assert store.load() == TABLE


def test_readers_find_whole_curves_while_many_write(tmp_path):
    tables = [CostTable((Column(context, tuple(range(1, 200)), (float(context),) * 199),)) for context in (1, 2, 3)]
    stores = [CurveStore(KEY, tmp_path) for _ in tables]
    stores[0].save(tables[0])
    found, done = [], threading.Event()

    def write(store, table):
        for _ in range(40):
            store.save(table)

    def read():
        while not done.is_set():
            found.append(CurveStore(KEY, tmp_path).load())

    writers = [threading.Thread(target=write, args=pair) for pair in zip(stores, tables, strict=True)]
    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    assert found and all(table in tables for table in found)
    assert [file.name for file in tmp_path.iterdir()] == [stores[0].path.name]


# the key


def test_equal_models_share_a_key_whatever_their_weights():
    one, two = tiny_llama(), tiny_llama()
    with torch.no_grad():
        two.get_input_embeddings().weight.add_(1.0)
    two.config._name_or_path = "elsewhere"
    assert curve_key(HuggingFaceTarget(one)) == curve_key(HuggingFaceTarget(two))


def test_what_changes_the_cost_changes_the_key(monkeypatch):
    target = HuggingFaceTarget(tiny_llama())
    keys = [curve_key(target), curve_key(HuggingFaceTarget(tiny_llama().float()))]
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    keys.append(curve_key(target))
    target.engine = "compiled"
    keys.append(curve_key(target))
    target.cost_facts = {"weights": "int8"}
    keys.append(curve_key(target))
    texts = [json.dumps(key, sort_keys=True) for key in keys]
    assert len(set(texts)) == len(texts)
    assert keys[0]["engine"] == "transformers" and keys[3]["engine"] == "compiled" and keys[4]["weights"] == "int8"


def test_a_target_without_a_model_has_a_key():
    class Other:
        device = torch.device("cpu")
        vocab_size = 5
        engine = "other"

    key = curve_key(Other())
    assert key["target"] == "Other" and key["model"] is None and key["weights"] is None
    json.dumps(key)
