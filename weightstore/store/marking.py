"""The part of the facade that writes without a claim: tags, activations, the receivers' list."""

from __future__ import annotations

import warnings

from weightstore import arguments
from weightstore.errors import InputRefusedError
from weightstore.history import activation, members, tags
from weightstore.history.commit import LogWriter
from weightstore.ids import SessionId, StoreId, VersionId, parse_tag_name
from weightstore.settings import Settings
from weightstore.store import fleet
from weightstore.store.engines import EngineReader
from weightstore.store.reading import Components, Selector
from weightstore.store.views import Activation, ReceiverInfo, VersionInfo


class StoreMarker(EngineReader):
    """Everything that writes and needs no claim.

    Args:
        components: Blobs, clock and entropy.
        store_id: Nonce of the store.
        settings: How this process uses it.
    """

    def __init__(self, components: Components, store_id: StoreId, *, settings: Settings) -> None:
        super().__init__(components, store_id, settings=settings)
        self._silence = members.SilenceWatch(components.clock, settings.member_silent_s)

    def tag(self, name: str, selector: Selector = "latest", *, owner: str = "") -> VersionInfo:
        """Name a version. A tagged version and its chain are kept until the tag moves."""
        tag = parse_tag_name(arguments.text(name, "name"))
        owner = arguments.text(owner, "owner")
        record = self._find(selector)[1]
        tags.put_tag(self._writer(), tag, record.version, owner=owner)
        return self._info(self._log.tail(), record)

    def untag(self, name: str, *, owner: str = "") -> None:
        """Remove a tag.

        Raises:
            TagNotFoundError: it is not set.
        """
        tag = parse_tag_name(arguments.text(name, "name"))
        tags.remove_tag(self._writer(), tag, owner=arguments.text(owner, "owner"))

    def activate(
        self,
        selector: Selector = "latest",
        *,
        timeout_s: float = 30.0,
        require_all: bool = False,
    ) -> Activation:
        """Name the version that all receivers in the mode `active` serve.

        Waits until the listed receivers of that mode have it staged, then puts one record.
        A version that is active already is not activated again; an older one than the active
        rolls the fleet back. The active version and the one before it are never retired.

        After a crash: the record is in the log or not; repeating the call ends in one.

        Args:
            selector: The version.
            timeout_s: After so long it is activated whoever is missing. A receiver that has
                said nothing new for `Settings.member_silent_s` is not waited for.
            require_all: Wait for silent receivers too, and activate nothing while one is
                missing.

        Raises:
            NotStagedError: with `require_all`, somebody had not staged it in time, or could not
                be asked.
            ConflictError: another version was activated meanwhile.
            VersionGoneError: it was retired.
            CommitUnknownError: no answer until the deadline; repeat the call.
            UnavailableError: the receivers could not be listed in all that time, or the storage
                takes no record.
        """
        wait_s = arguments.timeout_s(timeout_s)
        if wait_s is None:
            raise InputRefusedError(
                "an activation waits for a time that ends", do="Give timeout_s in seconds."
            )
        require_all = arguments.flag(require_all, "require_all")
        prefix, record = self._find(selector)
        newest = prefix.now.newest
        activated = activation.activate(
            self._writer(),
            self._blobs,
            version=record.version,
            clock=self._components.clock,
            timeout_s=wait_s,
            poll_s=self._settings.activate_poll_s,
            silent_s=self._settings.member_silent_s,
            require_staged=require_all,
            watch=self._silence,
        )
        return fleet.activation_view(
            activated,
            newest=newest.version if newest else None,
            now_ms=self._components.clock.unix_ms(),
        )

    def receivers(self) -> tuple[ReceiverInfo, ...]:
        """Every receiver that has said something about itself, by name; dead ones too.

        What is no receiver under `receivers/`, or cannot be read, is left out.
        """
        newest = self._tail().now.newest
        listed = members.list_members(self._blobs, self._settings.limits).members
        now_ms = self._components.clock.unix_ms()
        infos = (
            fleet.receiver_info(each, newest=newest.version if newest else None, now_ms=now_ms)
            for each in listed
        )
        return tuple(sorted(infos, key=lambda info: (info.name, info.member_id)))

    def forget_receiver(self, member_id: str) -> None:
        """Take a receiver that is gone off the list; one that lives comes back by itself.

        After a crash: it is listed or not.

        Raises:
            ReceiverNotFoundError: no receiver of this id is listed.
        """
        self._refuse_closed()
        fleet.forget_receiver(self._blobs, arguments.text(member_id, "member_id"))

    def _activate_committed(self, version: VersionId) -> None:
        """Activate what a put has committed; warn its caller of what was not reached."""
        settled = fleet.activate_committed(
            self._writer,
            self._blobs,
            version,
            clock=self._components.clock,
            settings=self._settings,
            watch=self._silence,
        )
        if settled.missed:
            warnings.warn(settled.missed, UserWarning, stacklevel=3)

    def _writer(self) -> LogWriter:
        self._refuse_closed()
        return LogWriter(
            self._blobs,
            self._log,
            clock=self._components.clock,
            entropy=self._components.entropy,
            settings=self._settings,
            session=SessionId(self._components.entropy.hex128()),
        )
