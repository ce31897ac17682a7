"""A head that was shipped for a target drafts in `auto` with that target, and only there."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from eagle_folders import eagle3
from head_folders import write_dflash, write_medusa

from branchwise import BranchwiseWarning, Engine, Speculator
from branchwise.draft import MixedDrafter, make_drafter
from branchwise.draft.asking import AskRule
from branchwise.draft.parts import drafter_parts
from branchwise.draft.shipped import VARIABLE, ShippedHead, find_head, list_heads, shape_of
from branchwise.target.fingerprint import fingerprint
from loop_rig import greedy_request
from oracles import greedy_by_recompute
from small_model_rig import Always
from zoo import tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
LAYERS = {"eagle": (2, 3), "block": (1, 2), "medusa": (2,)}


def write_manifest(folder, model, kind="eagle", layers=(2, 3), **target):
    (file,) = folder.glob("*.safetensors")
    content = file.read_bytes()
    hidden, depth, vocabulary = shape_of(model)
    about = {"name": "tiny", "fingerprint": fingerprint(model), "hidden_size": hidden, "layers": depth}
    manifest = {
        "format": 1,
        "kind": kind,
        "target": {**about, "vocab_size": vocabulary, **target},
        "feature_layers": list(layers),
        "weights": {"file": file.name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)},
    }
    (folder / "head.json").write_text(json.dumps(manifest))
    return folder


def target(seed=0):
    """Its values are bfloat16's, as in a checkpoint."""
    return tiny_llama(num_hidden_layers=6, seed=seed).to(torch.bfloat16).double()


@pytest.fixture
def heads(tmp_path, monkeypatch):
    """A folder that holds one head for `target()`; the search goes there, too."""
    write_manifest(eagle3().write(tmp_path / "tiny-head"), target())
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_a_head_is_found_by_its_target_alone(heads):
    (found,) = list_heads([heads])
    assert (found.name, found.kind, found.target) == ("tiny-head", "eagle", "tiny")
    assert find_head(target()) == found
    assert find_head(target().float()) == find_head(target().to(torch.bfloat16)) == found
    assert find_head(target(seed=1)) is None, "a fine-tuned model, or another of the same shape"
    assert find_head(tiny_llama(num_hidden_layers=5)) is None
    assert find_head(None) is None


def test_other_shapes_are_told_apart_without_looking_at_weights(heads, monkeypatch):
    monkeypatch.setattr("branchwise.draft.shipped.fingerprint", lambda model: pytest.fail("looked at"))
    assert find_head(tiny_llama(num_hidden_layers=5)) is None
    assert find_head(target(), places=[heads / "elsewhere"]) is None


def test_without_a_head_auto_is_what_it_was(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    drafter = make_drafter("auto", target=target())
    assert drafter_parts(drafter) == ("ngram", "recycling") and drafter.feature_layers == ()


def test_auto_and_nobody_else_takes_it(heads):
    model = target()
    auto = make_drafter("auto", target=model)
    assert isinstance(auto, MixedDrafter) and drafter_parts(auto) == ("ngram", "recycling", "eagle (tiny-head)")
    assert auto.feature_layers == (2, 3)
    assert drafter_parts(make_drafter("mixed", target=model)) == ("ngram", "recycling")
    assert drafter_parts(make_drafter("auto", target=target(seed=1))) == ("ngram", "recycling")
    assert drafter_parts(make_drafter("auto")) == ("ngram", "recycling")


def published(tmp_path, kind):
    if kind == "eagle":
        made = eagle3()
        made.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [2, 3, 3]}
        return made.write(tmp_path / "head")
    return {"block": write_dflash, "medusa": write_medusa}[kind](tmp_path / "head")


@pytest.mark.parametrize("pattern", ["y", "nnyn", "n"])
@pytest.mark.parametrize("kind", ["eagle", "block", "medusa"])
def test_whenever_it_is_asked_the_output_is_the_targets_own(tmp_path, monkeypatch, kind, pattern):
    """The head's weights are read before the first draft; what it missed it reads when it is first asked."""
    model = target() if kind == "eagle" else tiny_llama()
    write_manifest(published(tmp_path, kind), model, kind, LAYERS[kind])
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    drafter = make_drafter("auto", target=model, ask=Always(pattern))
    source = drafter.sources[2]
    assert source._drafter._drafter is None, "nothing is read before there is a request"
    output = Speculator(model, drafter=drafter, budget=12).complete(PROMPT, max_new_tokens=30, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, 30)
    assert output.drafter_parts == ("ngram", "recycling", f"{kind} (head)")
    asked = {name for record in output.records for name in record.draft.sources}
    assert (kind in asked) is ("y" in pattern)


def test_many_lanes_share_it(heads):
    model = target()
    with Engine(model, budget=9) as engine:
        assert drafter_parts(engine.session.drafter)[-1] == "eagle (tiny-head)"
        handles = [engine.submit(greedy_request(PROMPT[i:], 14)) for i in range(3)]
        while engine.step():
            pass
        for i, handle in enumerate(handles):
            assert list(handle.result().tokens) == greedy_by_recompute(model, PROMPT[i:], 14)


def test_a_damaged_head_is_named_and_does_without(heads):
    model = target()
    path = heads / "tiny-head" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 255
    path.write_bytes(content)
    with pytest.warns(BranchwiseWarning, match="tiny-head is not used.*checksum"):
        output = Speculator(model, budget=9).complete(PROMPT, max_new_tokens=10, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, 10)
    path.write_bytes(content[:-9])
    with pytest.warns(BranchwiseWarning, match="bytes, head.json says"):
        assert find_head(model) is None
    (heads / "tiny-head" / "head.json").write_text("{}")
    with pytest.warns(BranchwiseWarning, match="ship the head again"):
        assert find_head(model) is None


def test_the_users_folder_may_be_the_heads_own_but_must_exist(heads, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(heads / "tiny-head"))
    assert find_head(target()) is not None
    monkeypatch.setenv(VARIABLE, str(heads / "nowhere"))
    with pytest.warns(BranchwiseWarning, match="no folder"):
        assert find_head(target()) is None


def test_options_that_nothing_takes_are_refused(heads):
    with pytest.raises(ValueError, match="options of a draft model, but there is none"):
        make_drafter("auto", target=target(), width=3)


def test_the_target_is_left_as_it_was(heads):
    model = target()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Speculator(model, budget=9).complete(PROMPT, max_new_tokens=10, do_sample=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_head_for_the_compiled_engine_is_the_same(heads):
    # OpenVINO is an extra: the tests run without it, too
    pytest.importorskip("openvino", reason="this engine is an extra of its own: branchwise[openvino]")
    from branchwise.decode.attach import as_target

    model = target().float()
    found = find_head(as_target(model, "openvino", "int8"))
    assert found == find_head(model) and found is not None


def test_options_of_auto_go_to_the_head(heads):
    rule = AskRule()
    drafter = make_drafter("auto", target=target(), ask=rule, levels=2)
    assert drafter._ask is rule
    assert drafter.sources[2]._drafter.prepare().depth == 2
    assert ShippedHead.read(heads / "tiny-head").kind == "eagle"
