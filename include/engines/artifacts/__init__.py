"""Storage of the engines' results: one interface over folders (and, later, object stores)."""

from __future__ import annotations

from engines.artifacts.folder import (
    FolderArtifactStore,
    check_path,
    path_to_uri,
    rename_folder,
    uri_to_path,
    write_atomically,
)
from engines.artifacts.store import (
    ArtifactStore,
    canonical_json,
    combine_digests,
    digest_file,
    digest_folder,
)
from engines.contract import BadInputError

__all__ = [
    "ArtifactStore",
    "FolderArtifactStore",
    "canonical_json",
    "check_path",
    "combine_digests",
    "digest_file",
    "digest_folder",
    "open_store",
    "path_to_uri",
    "rename_folder",
    "uri_to_path",
    "write_atomically",
]


def open_store(uri: str) -> ArtifactStore:
    """The store behind a URI. Raises BadInputError for a scheme that no store here serves."""
    # A store that is not here yet is named; what no URI can be, the folder's store refuses.
    scheme, separator, _ = uri.partition("://")
    if not separator or scheme == "file":
        return FolderArtifactStore(uri)
    raise BadInputError(f"{uri}: no artifact store for '{scheme}://'; use file:///absolute/path", file=uri)
