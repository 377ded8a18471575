"""A small ASGI app over a receiver, for load balancers and Prometheus: no framework, no I/O.

`GET /ready` says whether a serving block could begin now, `GET /version` what is live, and
`GET /metrics` what the metrics say. Any ASGI server runs it, or an app that mounts it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl

from weightstore.errors import InputRefusedError, NotReadyError
from weightstore.format.canonical import MAX_INTEGER
from weightstore.history.delta_path import VersionRef
from weightstore.ids import VersionId
from weightstore.receiver.receiver_status import ReceiverStatus

Scope = Mapping[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

QUERY_SIZE_BYTES_MAX = 256
"""A longer query is refused unread."""
_QUESTIONS = ("exact", "min", "max_lag")
_LIFESPAN_MESSAGE_COUNT = 2
_DIGIT_COUNT_MAX = len(str(MAX_INTEGER))


class Serving(Protocol):
    """The part of a receiver that the app asks."""

    def status(self) -> ReceiverStatus:
        """Everything that is known of it now."""
        ...

    def serving(
        self,
        *,
        exact: int | None,
        min: int | None,  # noqa: A002 -- the word of requests that ask for it
        max_lag: int | None,
    ) -> AbstractContextManager[VersionId]:
        """Hold the weights still for a block, or refuse."""
        ...


class MetricsText(Protocol):
    """Metrics as text, such as `ReceiverMetrics`."""

    @property
    def content_type(self) -> str:
        """Of the text."""
        ...

    def text(self) -> bytes:
        """All of them."""
        ...


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    content_type: str = "application/json"
    allow: str = ""


class ReceiverApp:
    """An ASGI app with `/ready`, `/version` and `/metrics`.

    Args:
        receiver: What it tells about.
        metrics: What `/metrics` shows; None answers 404 there.
    """

    def __init__(self, receiver: Serving, metrics: MetricsText | None = None) -> None:
        self._receiver = receiver
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or go along with the server's start and end."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise InputRefusedError(f"this app answers http, not {scope['type']!r}")
        answer = self._answer(scope)
        headers = [
            (b"content-type", answer.content_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
            # What was ready a moment ago may not be ready now.
            (b"cache-control", b"no-store"),
        ]
        if answer.allow:
            headers.append((b"allow", answer.allow.encode()))
        body = b"" if scope["method"] == "HEAD" else answer.body
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _answer(self, scope: Scope) -> _Answer:
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        answers = {"/ready": self._ready, "/version": self._version, "/metrics": self._shown}
        answer = answers.get(path)
        if answer is None:
            return _said(404, error="no such path", paths=sorted(answers))
        if scope["method"] not in {"GET", "HEAD"}:
            found = _said(405, error=f"{scope['method']} is not answered here")
            return _Answer(found.status, found.body, allow="GET, HEAD")
        try:
            return answer(_asked(bytes(scope.get("query_string", b""))))
        except InputRefusedError as error:
            return _said(400, error=error.message, code=error.code, do=error.do)

    def _ready(self, asked: Mapping[str, int]) -> _Answer:
        unknown = sorted(asked.keys() - set(_QUESTIONS))
        if unknown:
            raise InputRefusedError(f"/ready does not know {', '.join(unknown)}")
        try:
            with self._receiver.serving(
                exact=asked.get("exact"), min=asked.get("min"), max_lag=asked.get("max_lag")
            ) as version:
                live = int(version)
        except NotReadyError as error:
            return _said(503, ready=False, reason=error.message, code=error.code, do=error.do)
        return _said(200, ready=True, version=live)

    def _version(self, asked: Mapping[str, int]) -> _Answer:
        _refuse_all(asked, "/version")
        status = self._receiver.status()
        return _said(
            200,
            version=status.live.version if status.live else None,
            digest=status.live.digest if status.live else None,
            staged=_number(status.staged),
            newest=status.newest,
            active=status.active,
            lag=status.lag,
            mode=status.mode,
            state=status.state,
            phase=status.phase,
            ready=status.is_ready,
            reason=status.why_not,
        )

    def _shown(self, asked: Mapping[str, int]) -> _Answer:
        _refuse_all(asked, "/metrics")
        if self._metrics is None:
            return _said(404, error="this app was made without metrics")
        return _Answer(200, self._metrics.text(), self._metrics.content_type)


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to start or to end."""
    for _ in range(_LIFESPAN_MESSAGE_COUNT):
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


def _asked(query: bytes) -> dict[str, int]:
    """What a query asks: whole numbers from 0, each name once.

    Raises:
        InputRefusedError: it is too long or something else.
    """
    if len(query) > QUERY_SIZE_BYTES_MAX:
        raise InputRefusedError(f"the query has more than {QUERY_SIZE_BYTES_MAX} bytes")
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=len(_QUESTIONS),
        )
    except ValueError as error:
        raise InputRefusedError("the query cannot be read", do="Ask /ready?min=7.") from error
    asked: dict[str, int] = {}
    for name, text in pairs:
        is_number = text.isascii() and text.isdigit() and len(text) <= _DIGIT_COUNT_MAX
        if name in asked or not is_number or int(text) > MAX_INTEGER:
            raise InputRefusedError(
                f"{name[:32]!r} is no whole number from 0, or comes twice", do="Ask /ready?min=7."
            )
        asked[name] = int(text)
    return asked


def _refuse_all(asked: Mapping[str, int], path: str) -> None:
    if asked:
        raise InputRefusedError(f"{path} takes no question", do="Ask without a query.")


def _number(ref: VersionRef | None) -> int | None:
    return ref.version if ref else None


def _said(status: int, **facts: object) -> _Answer:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return _Answer(status, text.encode() + b"\n")
