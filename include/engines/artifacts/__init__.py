"""Where the engines keep what they make: one interface over folders (and, later, object stores)."""

from __future__ import annotations

from urllib.parse import urlsplit

from engines.artifacts.folder import (
    FolderArtifactStore,
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
    scheme = urlsplit(uri).scheme
    if scheme in {"", "file"}:
        return FolderArtifactStore(uri)
    raise BadInputError(f"{uri}: no artifact store for '{scheme}://'; use file:///absolute/path", file=uri)
