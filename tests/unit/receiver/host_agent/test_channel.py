"""Frames: whole or refused, in time or given up, with one descriptor or none."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.clock import SystemClock
from weightstore.receiver.host_agent.channel import Channel, ChannelError, LateError
from weightstore.testing.open_files import all_files_closed
from weightstore.testing.waiting import WAIT_S

MOST = 1000
SOON_S = 0.05
Pair = tuple[Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A channel, and the bare socket on the other side."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with other, Channel(one, clock=SystemClock(), size_bytes_max=MOST) as channel:
        yield channel, other


def frame(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


@pytest.mark.parametrize("size", [0, 1, MOST])
def test_a_message_arrives_whole(pair: Pair, size: int) -> None:
    channel, other = pair
    data = os.urandom(size)
    channel.send(data, timeout_s=WAIT_S)
    assert other.recv(MOST + 100) == frame(data)
    other.sendall(frame(data))
    assert channel.receive(timeout_s=WAIT_S) == (data, None)


def test_a_message_in_parts_arrives_whole(pair: Pair) -> None:
    channel, other = pair
    data = os.urandom(300)

    def drip() -> None:
        for byte in frame(data):
            other.sendall(bytes([byte]))

    thread = threading.Thread(target=drip)
    thread.start()
    assert channel.receive(timeout_s=WAIT_S) == (data, None)
    thread.join()


def test_one_that_is_too_long_is_refused_on_both_sides(pair: Pair) -> None:
    channel, other = pair
    with pytest.raises(ChannelError, match="too long"):
        channel.send(bytes(MOST + 1), timeout_s=WAIT_S)
    other.sendall(struct.pack(">I", MOST + 1))
    with pytest.raises(ChannelError, match="1001"):
        channel.receive(timeout_s=WAIT_S)


@pytest.mark.parametrize("part", [b"", b"\0", b"\0\0\0", b"\0\0\0\5abcd"])
def test_silence_ends_with_the_deadline(pair: Pair, part: bytes) -> None:
    channel, other = pair
    other.sendall(part)
    with pytest.raises(LateError):
        channel.receive(timeout_s=SOON_S, first_timeout_s=SOON_S)


@pytest.mark.parametrize("part", [b"", b"\0\0", b"\0\0\0\5abcd"])
def test_a_peer_that_hangs_up_is_noticed(pair: Pair, part: bytes) -> None:
    channel, other = pair
    other.sendall(part)
    other.close()
    with pytest.raises(ChannelError, match="hung up"):
        channel.receive(timeout_s=WAIT_S)
    with pytest.raises(ChannelError, match="sent"):
        channel.send(b"x", timeout_s=WAIT_S)


def test_a_peer_that_takes_nothing_is_given_up(pair: Pair) -> None:
    channel, _ = pair

    def send_much() -> None:
        for _ in range(100_000):
            channel.send(bytes(MOST), timeout_s=SOON_S)

    with pytest.raises(LateError):
        send_much()


def test_another_thread_can_end_a_wait(pair: Pair) -> None:
    channel, _ = pair
    timer = threading.Timer(SOON_S, channel.interrupt)
    timer.start()
    with pytest.raises(ChannelError, match="hung up"):
        channel.receive(timeout_s=WAIT_S)
    timer.join()
    channel.close()
    channel.interrupt()


def test_a_descriptor_arrives_with_its_message(pair: Pair, tmp_path: Path) -> None:
    channel, other = pair
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with path.open("rb") as file:
        socket.send_fds(other, [frame(b"here")], [file.fileno()])
        data, found = channel.receive(timeout_s=WAIT_S, with_file=True)
        assert data == b"here"
        assert found is not None
        with os.fdopen(found, "rb") as taken:
            assert taken.read() == b"content"
        channel.send(b"back", timeout_s=WAIT_S, file=file.fileno())
    sent, files, _, _ = socket.recv_fds(other, 100, 4)
    assert (sent, len(files)) == (frame(b"back"), 1)
    os.close(files[0])


@pytest.mark.parametrize(("count", "with_file"), [(1, False), (2, True), (200, True)])
def test_descriptors_that_nobody_asked_for_are_closed(
    pair: Pair,
    tmp_path: Path,
    count: int,
    with_file: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    channel, other = pair
    path = tmp_path / "file"
    path.touch()
    with path.open("rb") as file, all_files_closed():
        socket.send_fds(other, [frame(b"here")], [file.fileno()] * count)
        with pytest.raises(ChannelError, match="file descriptors"):
            channel.receive(timeout_s=WAIT_S, with_file=with_file)


def test_the_kernel_says_who_is_there(pair: Pair) -> None:
    assert pair[0].peer_user() == os.getuid()
