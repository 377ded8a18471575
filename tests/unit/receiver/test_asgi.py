"""The ASGI app, driven as a server drives it: message by message."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from weightstore.errors import InputRefusedError
from weightstore.receiver.asgi import QUERY_SIZE_BYTES_MAX, ReceiverApp
from weightstore.receiver.receiver import Receiver
from weightstore.testing.rank_lab import RankLab, split
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab

pytest.importorskip("prometheus_client", reason="needs the metrics extra")

from weightstore.receiver.metrics import ReceiverMetrics


@dataclass(frozen=True)
class Got:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


def finish(running: Coroutine[Any, Any, None]) -> None:
    """Run to the end what never waits: a server's own loop is not needed."""
    with pytest.raises(StopIteration):
        running.send(None)


def get(app: ReceiverApp, path: str, query: str = "", method: str = "GET", **more: object) -> Got:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        raise AssertionError("the app reads no body")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "query_string": query.encode("latin-1"),
        "headers": [],
        **more,
    }
    finish(app(scope, receive, send))
    start, body = sent
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    assert not body["more_body"]
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Got(start["status"], headers, body["body"])


@pytest.fixture
def receiver() -> Receiver:
    return ReceiverLab.with_versions(mixed_schema(), 3).host_receiver()[0]


def test_ready_is_what_a_serving_block_would_say(receiver: Receiver) -> None:
    app = ReceiverApp(receiver)
    got = get(app, "/ready")
    assert (got.status, got.facts["ready"], got.facts["code"]) == (503, False, "WS-1004")
    assert "empty" in got.facts["reason"]
    receiver.refit(2)
    assert get(app, "/ready").facts == {"ready": True, "version": 2}
    for query, status in (
        ("min=2", 200), ("min=3", 503), ("exact=2", 200), ("exact=1", 503), ("max_lag=1", 200),
        ("max_lag=0", 503), ("min=1&max_lag=1", 200),
    ):  # fmt: skip
        assert get(app, "/ready", query).status == status, query
    receiver.invalidate("another process wrote the weights")
    got = get(app, "/ready", "min=2")
    assert got.status == 503
    assert "another process" in got.facts["reason"]


def test_a_rank_of_an_engine_is_asked_the_same() -> None:
    schema = mixed_schema()
    engine = RankLab(ReceiverLab.with_versions(schema, 3), split(schema, 2, "rows"))
    app = ReceiverApp(engine.ranks[1].engine)
    assert get(app, "/ready").status == 503
    engine.refit(2)
    assert get(app, "/ready", "min=2").facts == {"ready": True, "version": 2}
    assert get(app, "/version").facts["version"] == 2


def test_asking_leaves_no_serving_block_open(receiver: Receiver) -> None:
    app = ReceiverApp(receiver)
    receiver.refit(1)
    assert get(app, "/ready").status == 200
    # It would wait for the block's end, and on this clock for ever.
    assert receiver.refit(3).target == 3


@pytest.mark.parametrize(
    "query",
    [
        "min=", "min", "min=-1", "min=1.0", "min=1e3", "min=+1", "min=\u0661", "min=1&min=1", "=1",
        "min=99999999999999999999", "min=9007199254740992", "least=1", "min=1;exact=1", "&",
        "min=%", "min=1&exact=1&max_lag=1&min=2", "min=%31%00",
        "x" * (QUERY_SIZE_BYTES_MAX + 1),
        "min=" + "0" * QUERY_SIZE_BYTES_MAX, "min=\xff",
    ],
)  # fmt: skip
def test_a_bad_question_is_told_apart_from_not_ready(receiver: Receiver, query: str) -> None:
    receiver.refit(3)
    encoded = query.encode().decode("latin-1")
    got = get(ReceiverApp(receiver), "/ready", encoded)
    assert (got.status, got.facts["code"]) == (400, "WS-5011")
    assert len(got.body) < 500


def test_version_says_none_where_there_is_none(receiver: Receiver) -> None:
    app = ReceiverApp(receiver)
    facts = get(app, "/version").facts
    assert (facts["version"], facts["digest"], facts["state"]) == (None, None, "empty")
    receiver.refit(2)
    receiver.stage(3)
    live = receiver.status().live
    assert live is not None
    facts = get(app, "/version").facts
    assert facts == {
        "version": 2, "digest": live.digest, "staged": 3, "newest": 3,
        "active": None, "lag": 1, "mode": "controller", "state": "whole", "phase": "",
        "ready": True, "reason": "",
    }  # fmt: skip
    assert get(app, "/version", "min=1").status == 400


def test_metrics_are_shown_if_there_are_any(receiver: Receiver) -> None:
    assert get(ReceiverApp(receiver), "/metrics").status == 404
    metrics = ReceiverMetrics(receiver)
    receiver.refit(2)
    got = get(ReceiverApp(receiver, metrics), "/metrics")
    assert (got.status, got.headers["content-type"]) == (200, metrics.content_type)
    assert b'weightstore_receiver_version{which="live"} 2.0' in got.body


@pytest.mark.parametrize("path", ["/ready", "/version", "/metrics"])
def test_head_has_the_headers_of_get_and_no_body(receiver: Receiver, path: str) -> None:
    app = ReceiverApp(receiver, ReceiverMetrics(receiver))
    got, head = get(app, path), get(app, path, method="HEAD")
    assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")
    assert got.headers["content-length"] == str(len(got.body))
    assert got.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "get"])
def test_other_methods_are_refused(receiver: Receiver, method: str) -> None:
    got = get(ReceiverApp(receiver), "/ready", method=method)
    assert (got.status, got.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "", "/ready/", "/READY", "/ready/../version", "/é\x00"])
def test_other_paths_are_not_there(receiver: Receiver, path: str) -> None:
    assert get(ReceiverApp(receiver), path).status == 404
    assert get(ReceiverApp(receiver), path, method="POST").status == 404


def test_an_app_that_mounts_it_gives_its_own_root(receiver: Receiver) -> None:
    got = get(ReceiverApp(receiver), "/weights/version", root_path="/weights")
    assert got.status == 200


def test_it_goes_along_with_the_start_and_the_end_of_a_server(receiver: Receiver) -> None:
    asked = ["lifespan.startup", "lifespan.shutdown"]
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": asked.pop(0)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    finish(ReceiverApp(receiver)({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_websocket_is_refused(receiver: Receiver) -> None:
    async def never(*_: object) -> NoReturn:
        raise AssertionError

    with pytest.raises(InputRefusedError, match="websocket"):
        finish(ReceiverApp(receiver)({"type": "websocket", "path": "/ready"}, never, never))
