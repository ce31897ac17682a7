"""Random requests made from the server's own description: no answer is a server error or one that is not described."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from serve_rig import is_idle, serving, wait_for

CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]
ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/health"),
    ("GET", "/version"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def server():
    with serving() as up:
        yield up


@pytest.fixture(scope="module")
def api(server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_route_is_described(api):
    assert {(o.ok().method.upper(), o.ok().path) for o in api.get_all_operations()} == set(ROUTES)


@pytest.mark.parametrize("method, path", ROUTES)
def test_every_answer_is_described(server, api, method, path):
    @given(case=api[path][method].as_strategy())
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def run(case):
        case.validate_response(case.call(timeout=60), checks=CHECKS)

    run()
    wait_for(lambda: is_idle(server))
