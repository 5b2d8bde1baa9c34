"""The SPEC as supervisor and engine process read it. Imports little: a GPU waits for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from engines.contract import Spec
from engines.schemas import read_document


def check_spec(path: Path) -> str:
    """Check a SPEC against the schema and return its engine. Raises BadInputError.

    The engine's process resolves the URIs, so that it can be started sooner.
    """
    return str(read_document("spec", path)["engine"])


def load_spec(path: Path) -> Spec:
    """Read a SPEC that was checked, and settle its URIs from the environment. Raises BadInputError."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return Spec(
        engine=document["engine"],
        input=document.get("input", {}),
        output_uri=_output_uri(document.get("output_uri"), _output_root(path), path),
        device=document.get("device", "auto"),
        chunked=document.get("chunked", False),
        seed=document.get("seed", 0),
    )


def _output_root(path: Path) -> str | None:
    """Where relative outputs start: the run's own folder, for a job of the control plane's."""
    from engines.artifacts import path_to_uri
    from engines.confinement import Confines

    confines = Confines.from_environment(os.environ, path.absolute().parent)
    return os.environ.get("EMEP_ARTIFACT_URI") if confines is None else path_to_uri(confines.run)


def _output_uri(given: str | None, root: str | None, spec_path: Path) -> str:
    from engines.artifacts import check_path, path_to_uri, uri_to_path

    if given is None:
        return root or path_to_uri(spec_path.absolute().parent / "output")
    if "://" in given or given.startswith("/"):
        return given if "://" in given else path_to_uri(given)
    if not root:
        return path_to_uri(uri_to_path(given))
    return path_to_uri(uri_to_path(root) / check_path(given))
