"""The model of a disk: what a power cut may leave, and what it may not."""

from __future__ import annotations

from itertools import islice

from weightstore.testing.disk_model import (
    FOLDER,
    ROOT,
    Contents,
    Made,
    ModelDisk,
    Named,
    Synced,
    Told,
    Written,
    _picks,
)

FILE, INNER = 1, 2
LIMIT = 10_000


class Lab:
    """A disk and the bytes on it."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.disk = ModelDisk(self.contents)

    def make(self, inode: int, folder: int, name: str, data: bytes | None) -> None:
        """Make a file, or with None a folder."""
        self.disk.apply(Made(inode, data is None))
        self.disk.apply(Named(folder, name, inode))
        if data is not None:
            self.disk.apply(Written(inode, self.contents.number_of(data)))

    def sync(self, inode: int) -> None:
        """Sync a file or folder."""
        self.disk.apply(Synced(inode, "a test", ""))

    def states(self, limit: int = LIMIT) -> set[tuple[tuple[str, bytes | None], ...]]:
        """All that may be left."""
        return {
            tuple(
                sorted(
                    (path, None if number == FOLDER else self.contents.bytes_of(number))
                    for path, number in state.items()
                )
            )
            for state in self.disk.crash_states(limit)
        }


def test_nothing_that_was_not_synced_need_be_there() -> None:
    lab = Lab()
    lab.make(FILE, ROOT, "a", b"12345678")
    states = lab.states()
    assert {(), (("a", b""),), (("a", b"12345678"),)} <= states
    assert (("a", b"1234"),) in states  # in part
    assert (("a", bytes(8)),) in states  # the size without the data
    assert (("a", b"1234" + bytes(4)),) in states  # the second page is lost
    assert len(states) > 8


def test_synced_bytes_are_whole_wherever_they_are() -> None:
    lab = Lab()
    lab.make(FILE, ROOT, "a", b"12345678")
    lab.sync(FILE)
    assert lab.states() == {(), (("a", b"12345678"),)}
    lab.sync(ROOT)
    assert lab.states() == {(("a", b"12345678"),)}


def test_pages_that_were_not_written_stay_and_all_others_may_hold_anything() -> None:
    lab = Lab()
    head = b"h" * 4096
    lab.make(FILE, ROOT, "a", head + b"old" * 100)
    lab.sync(FILE)
    lab.sync(ROOT)
    lab.disk.apply(Written(FILE, lab.contents.number_of(head + b"new" * 200)))
    left = [data for state in lab.states() for _, data in state]
    assert all(data is not None and data.startswith(head) for data in left)
    assert len(left) > 5
    lab.disk.apply(Written(FILE, lab.contents.number_of(b"x" + head[1:] + b"new" * 200)))
    assert not all((data or b"").startswith(head) for state in lab.states() for _, data in state)


def test_a_synced_name_without_synced_bytes_may_hold_anything() -> None:
    lab = Lab()
    lab.make(FILE, ROOT, "a", b"12345678")
    lab.sync(ROOT)
    states = lab.states()
    assert () not in states
    assert (("a", b""),) in states


def test_a_file_goes_with_its_folder() -> None:
    """A folder that another process made and did not sync takes all in it along."""
    lab = Lab()
    lab.make(INNER, ROOT, "inner", None)
    lab.make(FILE, INNER, "a", b"x")
    lab.sync(FILE)
    lab.sync(INNER)
    assert lab.states() == {(), (("inner", None), ("inner/a", b"x"))}


def test_names_survive_each_for_itself() -> None:
    lab = Lab()
    lab.make(FILE, ROOT, "old", b"x")
    lab.sync(FILE)
    lab.sync(ROOT)
    lab.disk.apply(Named(ROOT, "old", None))
    lab.disk.apply(Named(ROOT, "new", FILE))
    old, new = ("old", b"x"), ("new", b"x")
    assert lab.states() == {(old,), (new,), (new, old), ()}


def test_a_name_may_mean_what_it_meant_in_between() -> None:
    lab = Lab()
    for inode, data in enumerate((b"a", b"b", b"c"), start=1):
        lab.make(inode, ROOT, "hint", data)
        lab.sync(inode)
    assert lab.states() == {(), (("hint", b"a"),), (("hint", b"b"),), (("hint", b"c"),)}


def test_what_is_not_named_is_in_no_state() -> None:
    lab = Lab()
    lab.disk.apply(Made(FILE, is_folder=False))
    lab.disk.apply(Written(FILE, lab.contents.number_of(b"x")))
    lab.disk.apply(Told("nothing"))
    assert lab.states() == {()}


def test_settled_is_durable() -> None:
    lab = Lab()
    lab.make(INNER, ROOT, "inner", None)
    lab.make(FILE, INNER, "a", b"x")
    lab.disk.settle()
    assert lab.states() == {(("inner", None), ("inner/a", b"x"))}


def test_a_spread_holds_the_extremes_and_never_more_than_it_may() -> None:
    lab = Lab()
    for inode in range(1, 13):
        lab.make(inode, ROOT, f"{inode}", b"data")
    neighbours = 2 + 2 * sum(2 for _ in range(12)) + 2 * 12 * 12
    few = list(lab.disk.crash_states(100))
    assert 100 < len(few) <= 100 + neighbours + 24 * 12
    assert {} in few
    assert lab.disk.present() in few
    # Steps through the whole product meet no state twice, but for what a lost name hides.
    many = lab.states(3000)
    assert len(many) > 2000


def test_states_have_numbers_that_do_not_depend_on_the_order_of_writing() -> None:
    one, other = Contents(), Contents()
    other.number_of(b"first")
    state = {"a": one.number_of(b"x"), "b": FOLDER}
    same = {"b": FOLDER, "a": other.number_of(b"x")}
    assert one.number_of_state(state) == other.number_of_state(same)
    different = [
        {"a": one.number_of(b"y"), "b": FOLDER},
        {"a": state["a"]},
        {"b": state["a"], "a": FOLDER},
        {"a": state["a"], "b": one.number_of(b"")},
    ]
    assert len({one.number_of_state(each) for each in (state, *different)}) == 5


def test_more_states_than_a_float_can_count_are_spread_too() -> None:
    sizes = [3] * 2000
    picked = list(islice(_picks(sizes, 50), 2 + 2 * 3 * 2000 + 49))
    assert all(len(one) == 2000 and set(one) <= {0, 1, 2} for one in picked)
    spread = {tuple(one) for one in picked[-49:]}
    assert len(spread) == 49
    assert not spread & {tuple(one) for one in picked[:-49]}
