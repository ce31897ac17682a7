"""The server on Ray: the same API, and no accepted request is lost when a replica is killed and clients try again."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import openai
import pytest

from branchwise.decode.recipe import EngineRecipe
from branchwise.serve.settings import ServerSettings
from ray_rig import SMALL, own_processes
from tiny_folder import save_tiny_model

# Ray is an extra, large and not for every platform
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed")

KEY = "secret"
#: a busy machine may take its time to start Ray
PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Two replicas; their URL and the model's folder."""
    from branchwise.serve.cluster import ClusterServer, Replicas, application

    folder = save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", chat=True)
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
    recipe = EngineRecipe(str(folder), dtype="float64", threads=1, drafter="ngram", budget=4, max_lanes=4)
    settings = ServerSettings("tiny", api_key=KEY, grace_seconds=2.0)
    server = ClusterServer(application(recipe, settings, Replicas(2, 2)), port=port, init=SMALL)
    server.start()
    yield f"http://127.0.0.1:{port}", folder
    server.stop()


def client(url: str, retries: int = 10) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=retries, timeout=PATIENCE_SECONDS)


def alone(folder: Path, prompt: str, seed: int, tokens: int) -> str:
    """The same from an engine in this process."""
    from branchwise.decode.request import Request
    from branchwise.decode.stopping import StopRules
    from branchwise.verify.law import Sampler

    recipe = EngineRecipe(str(folder), dtype="float64", drafter="none", budget=1)
    target, tokenizer = recipe.target()
    stop = StopRules(tokens, stop_tokens=frozenset({tokenizer.eos_token_id}))
    with recipe.engine(target, tokenizer, {}) as engine:
        handle = engine.submit(Request(tuple(tokenizer(prompt).input_ids), Sampler(True), stop, seed))
        while engine.step():
            pass
        return handle.result().text or ""


def test_the_api_is_that_of_one_server(served: tuple[str, Path]) -> None:
    url, folder = served
    own = client(url)
    assert own.models.list().data[0].id == "tiny"
    expected = alone(folder, "abcabc", 3, 30)
    whole = own.completions.create(model="tiny", prompt="abcabc", seed=3, max_tokens=30)
    assert whole.choices[0].text == expected
    stream = own.completions.create(model="tiny", prompt="abcabc", seed=3, max_tokens=30, stream=True)
    pieces = [chunk.choices[0].text for chunk in stream]
    assert len(pieces) > 3 and "".join(pieces) == expected
    with pytest.raises(openai.BadRequestError, match="top_q"):
        own.completions.create(model="tiny", prompt="a", extra_body={"top_q": 1})
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{url}/version").status_code == 200


def test_no_request_is_lost_when_a_replica_is_killed_and_clients_try_again(served: tuple[str, Path]) -> None:
    url, folder = served
    told: dict[int, str] = {}
    failures: list[BaseException] = []

    def ask(first: int) -> None:
        own = client(url)
        try:
            for seed in range(first, first + 6):
                answer = own.completions.create(model="tiny", prompt="abcabc", seed=seed, max_tokens=40)
                told[seed] = answer.choices[0].text
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(6 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE_SECONDS
    while len(told) < 4 and not failures:
        assert time.monotonic() < end
        time.sleep(0.02)
    replicas = own_processes("ray::ServeReplica")
    assert len(replicas) == 2
    replicas[0].kill()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not failures and sorted(told) == list(range(24)), failures
    assert all(told[seed] == alone(folder, "abcabc", seed, 40) for seed in (0, 5, 11, 17, 23))


@pytest.mark.parametrize("text", ["0:2", "3:1", "a", "1:2:3", ""])
def test_impossible_numbers_of_replicas_are_refused(text: str) -> None:
    from branchwise.serve.cluster import Replicas

    with pytest.raises(ValueError, match="replicas are MIN:MAX"):
        Replicas.parse(text)


def test_words_of_ray_s_own_tools() -> None:
    from branchwise.serve.cluster import build

    deployment = build({"model": "/m/tiny", "replicas": "2:5", "budget": "3", "max_lanes": "7", "gpus": "0.5"})
    options = deployment._bound_deployment._deployment_config
    assert (options.autoscaling_config.min_replicas, options.autoscaling_config.max_replicas) == (2, 5)
    assert options.autoscaling_config.target_ongoing_requests == 7
    with pytest.raises(ValueError, match=r"there is no 'lanes' here; there are .*max_lanes"):
        build({"lanes": 3})


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from branchwise.serve.cluster import Replicas, application

    for module in ("ray", "ray.data", "ray.serve"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'branchwise\[ray\]'"):
        application(EngineRecipe(), ServerSettings("tiny"), Replicas())
