"""What every artifact store must do; each store supplies a fixture of its own."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.artifacts import ArtifactStore, FolderArtifactStore, open_store, path_to_uri, uri_to_path
from engines.artifacts.store import canonical_json
from engines.contract import BadInputError


class ArtifactStoreTestCase:
    """The conformance suite."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ArtifactStore:
        raise NotImplementedError

    def test_it_is_a_store(self, store: ArtifactStore) -> None:
        assert isinstance(store, ArtifactStore)

    def test_bytes_and_json_come_back(self, store: ArtifactStore) -> None:
        output = store.put_bytes("a/b.bin", b"\0\1")
        assert store.get_bytes("a/b.bin") == b"\0\1"
        assert output.bytes == 2
        assert output.sha256 == store.sha256("a/b.bin")
        assert output.uri == store.uri_of("a/b.bin") == f"{store.uri}/a/b.bin"
        store.put_json("a/c.json", {"b": [1.5, None], "a": "ü"})
        assert store.get_json("a/c.json") == {"b": [1.5, None], "a": "ü"}
        store.put_bytes("a/b.bin", b"new")
        assert store.get_bytes("a/b.bin") == b"new"

    def test_files_and_folders_come_back(self, store: ArtifactStore, tmp_path: Path) -> None:
        source = tmp_path / "source"
        (source / "deep").mkdir(parents=True)
        (source / "one.txt").write_text("1")
        (source / "deep" / "two.txt").write_text("22")
        output = store.put_folder("model", source)
        assert output.bytes == 3
        assert store.list("model") == ["model/deep/two.txt", "model/one.txt"]
        assert (store.get("model") / "deep" / "two.txt").read_text() == "22"
        store.put_file("x/file.txt", source / "one.txt")
        assert store.get("x/file.txt").read_text() == "1"
        with pytest.raises(BadInputError, match="exists already"):
            store.put_folder("model", source)

    def test_a_folder_has_one_digest_whatever_its_name(self, store: ArtifactStore, tmp_path: Path) -> None:
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "f").write_text("1")
        first, second = store.put_folder("one", tmp_path / "s"), store.put_folder("two", tmp_path / "s")
        assert first.sha256 == second.sha256 == store.sha256("one")
        (tmp_path / "s" / "f").rename(tmp_path / "s" / "g")
        assert store.put_folder("three", tmp_path / "s").sha256 != first.sha256

    def test_put_if_absent_writes_once(self, store: ArtifactStore) -> None:
        assert store.put_if_absent("k", b"first")
        assert not store.put_if_absent("k", b"second")
        assert store.get_bytes("k") == b"first"

    def test_of_many_writers_at_once_exactly_one_wins_and_its_data_is_whole(
        self, store: ArtifactStore
    ) -> None:
        barrier = threading.Barrier(8)
        won: list[int] = []

        def write(number: int) -> None:
            barrier.wait()
            if store.put_if_absent("race", bytes([number]) * 100_000):
                won.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.get_bytes("race") == bytes([won[0]]) * 100_000
        assert store.list() == ["race"]

    def test_what_is_not_there_is_named(self, store: ArtifactStore) -> None:
        assert not store.exists("nothing")
        assert store.list("nothing") == []
        for read in (store.get_bytes, store.get, store.get_json, store.sha256):
            with pytest.raises(BadInputError, match="there is no artifact nothing"):
                read("nothing")
        store.delete("nothing")

    def test_delete_removes_files_and_folders(self, store: ArtifactStore) -> None:
        store.put_bytes("d/a", b"1")
        store.put_bytes("d/b/c", b"1")
        store.delete("d/a")
        assert store.list() == ["d/b/c"]
        store.delete("d")
        assert store.list() == []

    @pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/passwd", "", "..", "a\\b", "a\0b", "."])
    def test_a_key_never_leaves_the_store(self, store: ArtifactStore, key: str) -> None:
        actions: list[Callable[[], object]] = [
            lambda: store.put_bytes(key, b"x"),
            lambda: store.put_if_absent(key, b"x"),
            lambda: store.get_bytes(key),
            lambda: store.delete(key),
            lambda: store.uri_of(key),
        ]
        for action in actions:
            with pytest.raises(BadInputError, match="no artifact key"):
                action()

    @pytest.mark.parametrize(
        ("value", "where"),
        [({"a": [1, float("nan")]}, "a[1]"), (float("inf"), "value"), ({"a": object()}, None)],
    )
    def test_what_json_cannot_hold_is_refused(
        self, store: ArtifactStore, value: object, where: str | None
    ) -> None:
        with pytest.raises(BadInputError) as caught:
            store.put_json("x.json", value)
        assert caught.value.field == where
        assert not store.exists("x.json")

    def test_json_that_is_none_is_named(self, store: ArtifactStore) -> None:
        store.put_bytes("x.json", b"{")
        with pytest.raises(BadInputError, match=r"x\.json is not JSON"):
            store.get_json("x.json")


class TestFolderArtifactStore(ArtifactStoreTestCase):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ArtifactStore:
        return open_store(path_to_uri(tmp_path / "a store"))

    def test_a_link_does_not_lead_out(self, store: ArtifactStore, tmp_path: Path) -> None:
        store.put_bytes("a", b"1")
        os.symlink(tmp_path, Path(uri_to_path(store.uri)) / "out")
        with pytest.raises(BadInputError, match="through a link"):
            store.put_bytes("out/x", b"1")

    def test_unfinished_writes_are_not_listed(self, store: ArtifactStore) -> None:
        store.put_bytes("a", b"1")
        (uri_to_path(store.uri) / ".emep-0123").write_bytes(b"half")
        assert store.list() == ["a"]


def test_uris_and_paths_name_the_same_place(tmp_path: Path) -> None:
    odd = tmp_path / "with space & ü#?"
    assert uri_to_path(path_to_uri(odd)) == odd
    assert uri_to_path(str(tmp_path)) == tmp_path
    assert FolderArtifactStore(str(tmp_path)).uri == tmp_path.as_uri()


@pytest.mark.parametrize(
    "uri", ["s3://bucket/x", "http://host/x", "file://host/x", "file://[x", "x" * 300, "a\0b"]
)
def test_a_uri_that_no_store_serves_is_refused(uri: str) -> None:
    with pytest.raises(BadInputError):
        open_store(uri)


def test_canonical_json_depends_on_the_value_alone() -> None:
    assert canonical_json({"b": 1, "a": [1.0, "é"]}) == canonical_json(
        json.loads('{ "a": [1.0, "\\u00e9"], "b": 1 }')
    )
