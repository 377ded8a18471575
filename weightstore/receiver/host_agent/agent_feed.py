"""Packs and decoded pieces from a host agent, and from the store wherever the agent fails."""

from __future__ import annotations

import threading

from weightstore.errors import CorruptObjectError
from weightstore.format.manifest import Manifest, PackRef
from weightstore.history.pack_jobs import PackJob
from weightstore.layout.schema import Schema
from weightstore.receiver.host_agent.client import AgentClient, Grant, NoAgentError
from weightstore.receiver.host_agent.messages import MS_PER_S, PackRequest
from weightstore.receiver.host_agent.segments import open_segment
from weightstore.receiver.piece_feed import OwnFeed, WrongAnswerError
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore

_NOTE_COUNT_MAX = 4
"""Reasons that one report names."""


class AgentFeed:
    """Asks the agent first. What it gives is verified as if it came from the store.

    Args:
        blobs: The store, for what the agent does not give.
        limits: Hard bounds.
        client: Asks the agent.
    """

    def __init__(self, blobs: BlobStore, limits: Limits, client: AgentClient) -> None:
        self._own = OwnFeed(blobs, limits)
        self._limits = limits
        self._client = client
        self._lock = threading.Lock()
        self._grants: dict[PackJob, Grant] = {}
        self._notes: list[str] = []
        self._is_full = False

    def load(self, schema: Schema, manifest: Manifest, pack: PackRef, /) -> PackJob:
        """One pack: from the agent with its decoded pieces, or else from the store."""
        # What is missing may be what this rank holds: it does not ask again before it has given
        # something back.
        if self._is_full and self._grants:
            return self._own.load(schema, manifest, pack)
        try:
            grant = self._client.ask(self._request(manifest, pack))
        except NoAgentError as error:
            self._is_full = error.is_busy
            self._note(str(error))
            return self._own.load(schema, manifest, pack)
        try:
            reader, pieces = open_segment(grant.file, schema, pack, self._limits)
        except CorruptObjectError as error:
            grant.release()
            self._note(error.message)
            raise WrongAnswerError(error.message) from error
        job = PackJob(manifest, pack, reader, schema, pieces)
        with self._lock:
            self._grants[job] = grant
        return job

    def release(self, job: PackJob, /) -> None:
        """Let the agent take a segment back."""
        with self._lock:
            grant = self._grants.pop(job, None)
        if grant is not None:
            self._is_full = False
            grant.release()
            self._client.flush()

    def release_all(self) -> None:
        """Let the agent take all segments back."""
        with self._lock:
            grants, self._grants = self._grants, {}
        self._is_full = False
        for grant in grants.values():
            grant.release()
        if grants:
            self._client.flush()

    def distrust(self) -> None:
        """Go on without this agent until another one is there."""
        self._note("the host agent gave wrong pieces")
        self._client.distrust()

    def take_note(self) -> str:
        """Why the agent did not help."""
        with self._lock:
            notes, self._notes = self._notes, []
        return "; ".join(notes)

    def _request(self, manifest: Manifest, pack: PackRef) -> PackRequest:
        return PackRequest.of(manifest, pack, max(1, int(self._client.wait_s * MS_PER_S)))

    def _note(self, text: str) -> None:
        with self._lock:
            if text not in self._notes and len(self._notes) < _NOTE_COUNT_MAX:
                self._notes.append(text)
