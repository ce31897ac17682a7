"""Clients that leave, dawdle or send nonsense: the server gives an answer or lets go, and goes on serving others."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from serve_rig import NAME, Lines, RawClient, is_idle, serving, wait_for

BODY = {"model": NAME, "prompt": "hello", "temperature": 0, "max_tokens": 200}
STREAM = {**BODY, "stream": True}
SHORT = {**BODY, "max_tokens": 3}


@pytest.fixture(scope="module")
def slow():
    with serving(slow=True, body_bytes=5_000) as up:
        yield up


def still_serves(server) -> bool:
    client = RawClient(server)
    client.post("/v1/completions", SHORT)
    status, body = client.status_and_body()
    client.close()
    return status == 200 and body["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("body", [STREAM, BODY], ids=["stream", "whole"])
def test_leaving_in_the_middle_cancels(slow, body):
    client = RawClient(slow)
    before = slow.engine.statistics.finished["cancelled"]
    client.post("/v1/completions", body)
    if body is STREAM:
        client.read_until(b"data: ")
    wait_for(lambda: slow.engine.statistics.running == 1)
    client.close()
    wait_for(lambda: is_idle(slow))
    assert slow.engine.statistics.finished["cancelled"] == before + 1
    assert still_serves(slow)


def test_leaving_while_waiting_for_a_lane_cancels():
    with serving(slow=True, engine={"max_lanes": 1}) as server:
        first, second = RawClient(server), RawClient(server)
        first.post("/v1/completions", STREAM)
        wait_for(lambda: server.engine.statistics.running == 1)
        second.post("/v1/completions", STREAM)
        wait_for(lambda: server.engine.statistics.waiting == 1)
        second.close()
        wait_for(lambda: server.engine.statistics.waiting == 0)
        assert server.engine.statistics.finished == {"cancelled": 1}, "the first one is still running"
        first.close()
        wait_for(lambda: is_idle(server))


def test_a_half_closed_connection_counts_as_left(slow):
    """A client that shuts down its side after the request reads nothing more from uvicorn; nothing keeps running."""
    client = RawClient(slow)
    client.post("/v1/completions", STREAM)
    wait_for(lambda: slow.engine.statistics.running == 1)
    client.socket.shutdown(socket.SHUT_WR)
    wait_for(lambda: is_idle(slow))
    client.close()
    assert still_serves(slow)


def test_a_reader_that_takes_nothing_is_given_up():
    with serving(send_seconds=0.5, send_buffer=4096, engine={"drafter": "none", "budget": 1}) as server:
        client = RawClient(server, receive_buffer=2048)
        client.post("/v1/completions", {**STREAM, "n": 4, "logprobs": 20, "max_tokens": 150})
        wait_for(lambda: server.app.state.service._open == 1)
        wait_for(lambda: server.app.state.service._open == 0)
        assert still_serves(server)
        assert b"[DONE]" not in client.read_until(b"[DONE]")
        client.close()


def test_a_slow_reader_gets_everything(slow):
    client = RawClient(slow, receive_buffer=2048)
    client.post("/v1/completions", {**STREAM, "max_tokens": 40})
    time.sleep(1.0)
    text = b""
    while b"[DONE]" not in text:
        text += client.socket.recv(256)
        time.sleep(0.002)
    client.close()
    assert text.count(b'"finish_reason":"length"') == 1


def test_two_slow_streams_do_not_hold_up_a_quick_one(slow):
    others = [RawClient(slow, receive_buffer=2048) for _ in range(2)]
    for other in others:
        other.post("/v1/completions", STREAM)
    began = time.monotonic()
    assert still_serves(slow)
    assert time.monotonic() - began < 10
    for other in others:
        other.close()
    wait_for(lambda: is_idle(slow))


@pytest.mark.parametrize(
    "body, status, says",
    [
        (b'{"model": "tiny", "prompt": ', 400, "no valid JSON"),
        (b"", 400, "JSON body"),
        (b"[1, 2]", 400, "dictionary"),
        (b'"hello"', 400, "dictionary"),
        (b'{"prompt": "caf\xe9"}', 400, "body"),
        (b'{"prompt": "\\ud800"}', 400, "prompt"),
        (b'{"prompt": "x", "temperature": NaN}', 400, "temperature"),
        (b'{"prompt": "x", "temperature": 1e999}', 400, "temperature"),
        (b"[" * 4000, 400, ""),
        (b'{"prompt": [' + b"[" * 2000 + b"]" * 2000 + b"]}", 400, ""),
        (b'{"prompt": ""}', 400, "prompt is empty"),
        (b'{"prompt": [[1], []]}', 400, "prompt"),
        (b'{"prompt": [99999]}', 400, "outside the model's vocabulary"),
        (b'{"prompt": [1, "a"]}', 400, "prompt"),
        (b'{"prompt": "' + b"x" * 10_000 + b'"}', 413, "larger than the 5000 bytes"),
    ],
)
def test_nonsense_gets_an_answer(slow, body, status, says):
    client = RawClient(slow)
    client.post("/v1/completions", body)
    got, answer = client.status_and_body()
    client.close()
    assert got == status, answer
    assert says in answer["error"]["message"] and answer["error"]["type"] == "invalid_request_error"
    assert is_idle(slow)


def test_a_body_without_a_length_is_counted_while_it_comes(slow):
    client = RawClient(slow)
    piece = b"%x\r\n" % 1000 + b"x" * 1000 + b"\r\n"
    client.post("/v1/completions", piece * 8 + b"0\r\n\r\n", "Transfer-Encoding: chunked")
    status, answer = client.status_and_body()
    client.close()
    assert status == 413 and "larger than the 5000 bytes" in answer["error"]["message"]


def test_a_body_that_never_ends_holds_nobody_up(slow):
    client = RawClient(slow)
    client.post("/v1/completions", b'{"model"', length=1000)
    assert still_serves(slow)
    client.close()
    wait_for(lambda: is_idle(slow))


def test_bytes_that_are_no_http(slow):
    client = RawClient(slow)
    client.socket.sendall(b"\x16\x03\x01\x02\x00 not http at all\r\n\r\n")
    assert b"400" in client.read_until(b"\r\n\r\n")
    client.close()
    assert still_serves(slow)


# keys and limits


@pytest.mark.parametrize("header", [(), ("Authorization: Bearer wrong",), ("Authorization: secret",)])
def test_a_wrong_key_is_turned_away(header):
    with serving(api_key="secret") as server:
        client = RawClient(server)
        client.post("/v1/completions", SHORT, *header)
        status, answer = client.status_and_body()
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert answer["error"]["type"] == "authentication_error"
        client.close()
        client = RawClient(server)
        client.post("/v1/completions", SHORT, "Authorization: Bearer secret")
        assert client.status_and_body()[0] == 200
        client.close()


def test_too_many_at_once_are_told_to_come_back():
    with serving(slow=True, open_requests=2) as server:
        clients = [RawClient(server) for _ in range(3)]
        for client in clients[:2]:
            client.post("/v1/completions", STREAM)
            client.read_until(b"data: ")
        clients[2].post("/v1/completions", STREAM)
        status, answer = clients[2].status_and_body()
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        for client in clients:
            client.close()
        wait_for(lambda: is_idle(server))
        assert still_serves(server)


def test_a_full_queue_is_429_and_leaves_nothing_behind():
    with serving(slow=True, engine={"max_lanes": 1, "queue_limit": 2}) as server:
        client = RawClient(server)
        client.post("/v1/completions", {**STREAM, "n": 8})
        status, answer = client.status_and_body()
        assert (status, answer["error"]["code"]) == (429, "queue_full")
        client.close()
        wait_for(lambda: server.engine.statistics.finished and is_idle(server))
        assert set(server.engine.statistics.finished) == {"cancelled"}, "those that had a place gave it back"
        assert still_serves(server)


# ends


def test_ending_lets_a_stream_finish():
    with serving(slow=True, grace_seconds=20) as server:
        client = RawClient(server)
        client.post("/v1/completions", {**STREAM, "max_tokens": 30})
        client.read_until(b"data: ")
        server.should_exit = True
        assert b"[DONE]" in client.read_until(b"[DONE]")
        client.close()


def test_what_takes_too_long_is_ended_cleanly():
    with serving(slow=True, grace_seconds=0.3) as server:
        client = RawClient(server)
        client.post("/v1/completions", {**STREAM, "max_tokens": 240})
        client.read_until(b"data: ")
        server.should_exit = True
        rest = client.read_until(b"[DONE]")
        client.close()
    (line,) = (line for line in rest.decode().splitlines() if '"error"' in line)
    assert json.loads(line.removeprefix("data: "))["error"]["code"] == "cancelled"
    assert rest.count(b"[DONE]") == 1


def test_a_broken_request_is_500_and_others_go_on(monkeypatch):
    from branchwise.serve import penalties

    def broken(self, input_ids, scores):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(penalties.OutputPenalty, "__call__", broken)
    with serving() as server:
        client = RawClient(server)
        client.post("/v1/completions", {**SHORT, "presence_penalty": 1})
        status, answer = client.status_and_body()
        assert status == 500 and "no such luck" in answer["error"]["message"]
        client.close()
        client = RawClient(server)
        client.post("/v1/completions", {**SHORT, "presence_penalty": 1, "stream": True})
        events = client.read_until(b"[DONE]")
        assert b"no such luck" in events and b"[DONE]" in events
        client.close()
        assert still_serves(server)


# the log


@pytest.mark.parametrize("log_prompts", [False, True])
def test_the_log_tells_numbers_and_no_text(log_prompts):
    with Lines().listening() as lines, serving(log_prompts=log_prompts) as server:
        client = RawClient(server)
        client.post("/v1/completions", {**SHORT, "prompt": "secret words"})
        assert client.status_and_body()[0] == 200
        client.close()
        wait_for(lambda: is_idle(server))
    completion = next(line for line in lines if line["event"] == "completion")
    assert (completion["prompt_tokens"], completion["completion_tokens"]) == (12, 3)
    assert completion["first_token_seconds"] >= 0
    assert any(line["event"] == "response" and line["status"] == 200 for line in lines)
    assert ("secret words" in json.dumps(lines)) is log_prompts


def test_the_command_line_needs_its_extra_and_checks_first(monkeypatch):
    import sys

    from typer.testing import CliRunner

    from branchwise.cli import app

    wrong = CliRunner().invoke(app, ["serve", "--drafter", "psychic"])
    assert wrong.exit_code == 2 and "no drafter is named 'psychic'" in wrong.stderr
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "branchwise.serve.run", raising=False)
    missing = CliRunner().invoke(app, ["serve"])
    assert missing.exit_code == 2 and "pip install 'branchwise[serve]'" in missing.stderr


def test_threads_end_with_the_server():
    before = {thread.name for thread in threading.enumerate()}
    with serving() as server:
        assert still_serves(server)
    assert "branchwise-engine" not in {thread.name for thread in threading.enumerate()} - before
