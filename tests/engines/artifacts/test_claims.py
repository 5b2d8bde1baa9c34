"""Whose outputs a folder holds, and when an engine may replace them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engines.artifacts import FolderArtifactStore, path_to_uri
from engines.artifacts.claims import claim_outputs
from engines.contract import BadInputError

NAMES = ("results.json", "samples")


@pytest.fixture
def store(tmp_path: Path) -> FolderArtifactStore:
    return FolderArtifactStore(path_to_uri(tmp_path / "out"))


def claim(store: FolderArtifactStore, work: str, *, force: bool = False) -> bool:
    """Whether an earlier evaluation's outputs stood there."""
    found = claim_outputs(store, "evaluate", {"weights": work}, NAMES, of=f"model {work}", force=force)
    return found is not None


def test_an_empty_folder_is_claimed_and_its_own_work_claims_it_again(store: FolderArtifactStore) -> None:
    assert not claim(store, "a")
    assert claim(store, "a")


def test_results_of_other_work_are_refused_and_named(store: FolderArtifactStore) -> None:
    claim(store, "a")
    with pytest.raises(BadInputError, match="holds the results of model a, not of model b") as caught:
        claim(store, "b")
    assert caught.value.code == "output_exists"
    assert claim(store, "a"), "the refused one has changed nothing"


def test_force_replaces_other_work(store: FolderArtifactStore) -> None:
    claim(store, "a")
    assert claim(store, "b", force=True)
    with pytest.raises(BadInputError, match="of model b"):
        claim(store, "a")


@pytest.mark.parametrize("name", NAMES)
def test_files_that_no_engine_wrote_are_never_replaced(store: FolderArtifactStore, name: str) -> None:
    store.put_bytes(name, b"mine")
    with pytest.raises(BadInputError, match="no evaluate of EMEP wrote it"):
        claim(store, "a", force=True)
    assert store.get_bytes(name) == b"mine"
    assert store.list() == [name]


def test_a_damaged_claim_is_another_works(store: FolderArtifactStore) -> None:
    store.put_bytes("emep_evaluate.json", b"{")
    with pytest.raises(BadInputError, match="holds the results of work that its claim does not name"):
        claim(store, "a", force=True)


def test_of_two_writers_at_once_one_has_the_folder(store: FolderArtifactStore) -> None:
    refused: list[str] = []
    gate = threading.Barrier(8)

    def work(name: str) -> None:
        gate.wait()
        try:
            claim(store, name)
        except BadInputError:
            refused.append(name)

    threads = [threading.Thread(target=work, args=(f"m{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
