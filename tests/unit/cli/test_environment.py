"""The environment's only word: where caches lie."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from weightstore import cli
from weightstore.cli.app import main
from weightstore.cli.environment import environment_settings
from weightstore.format.format_file import FormatFile, encode_format_file
from weightstore.ids import StoreId
from weightstore.settings import Settings
from weightstore.storage import index_place
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import write_versions

STORE_ID = StoreId("a" * 32)
VERSION_COUNT = 300
"""More than a handle keeps in memory, so that a listing uses the index."""


@pytest.mark.parametrize("value", [None, "", "relative/cache"])
def test_no_usable_value_leaves_the_default(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert environment_settings() == Settings()


def test_the_users_cache_directory_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environment_settings() == Settings(cache_dir=tmp_path / "weightstore")


def test_the_index_of_a_store_that_is_only_read_lies_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, blobs = tmp_path / "store", MemoryBlobStore()
    write_versions(blobs, VERSION_COUNT)
    blobs.put_if_absent("FORMAT", encode_format_file(FormatFile(store_id=STORE_ID)))
    for info in blobs.list(""):
        (place / info.key).parent.mkdir(parents=True, exist_ok=True)
        (place / info.key).write_bytes(blobs.get(info.key, max_size_bytes=info.size_bytes))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index_place, "_is_writable", lambda _: False)
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["show", str(place), "--json", "--count", str(VERSION_COUNT)])
        assert not ended.value.code
        shown = json.loads(capsys.readouterr().out)["versions"]
        assert [row["version"] for row in shown] == list(range(VERSION_COUNT, 0, -1))
        (folder,) = (tmp_path / "cache" / "weightstore").glob(f"{STORE_ID}-*")
        assert (folder / "data.mdb").is_file()
    assert not (place / "index").exists()


def test_every_command_opens_stores_with_these_settings() -> None:
    """The demo, whose store is new and its own, needs none."""
    folder = Path(cli.__file__).parent
    without = [
        f"{path.name}:{call.lineno}"
        for path in sorted(folder.glob("co*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "WeightStore.open"
        and all(each.arg != "settings" for each in call.keywords)
    ]
    assert not without
