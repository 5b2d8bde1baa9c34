"""Claims on output folders: an engine replaces only outputs that the same engine wrote of the same work.

Beside its outputs an engine writes a claim, a small JSON file that says which engine wrote them, and from
what. Outputs without a claim are a user's own files, and are never replaced. Outputs with a claim of other
work are replaced only if the caller asks for that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.artifacts.folder import uri_to_path
from engines.artifacts.store import ArtifactStore, canonical_json
from engines.contract import BadInputError

SCHEMA_VERSION = 1


def claim_outputs(
    store: ArtifactStore,
    engine: str,
    work: Mapping[str, Any],
    names: Sequence[str],
    *,
    of: str,
    force: bool = False,
    files: Sequence[str] = (),
    inputs: Iterable[Path] = (),
) -> dict[str, Any] | None:
    """Claim ``names`` in ``store`` for an engine before it writes them; return the former claim, or None.

    ``work`` is what tells this work from other work (JSON values), ``of`` says it to people ("model /m/a").
    ``force`` replaces outputs of other work. Where a name is a folder's, ``files`` are the keys below it that
    this work writes; those of the work before are in the claim's ``files``. Raises BadInputError where one of
    the names is taken by what no such engine wrote, or is or holds one of ``inputs``, and, without ``force``,
    by another work's outputs.
    """
    key = f"emep_{engine}.json"
    refuse_inputs(store, (*names, key), inputs, engine)
    found = _read(store, key)
    before = found.get("files") if found is not None else None
    below = tuple(f"{name}/" for name in names)
    known = sorted({*files, *(one for one in before or () if isinstance(one, str) and one.startswith(below))})
    mine = {"schema_version": SCHEMA_VERSION, "engine": engine, "work": dict(work), "of": of, "files": known}
    if found is None:
        taken = [name for name in names if store.exists(name)]
        if taken:
            raise BadInputError(
                f"{store.uri_of(taken[0])} exists, and no {engine} of EMEP wrote it; choose another folder, "
                "or move it away",
                code="output_exists",
                file=store.uri_of(taken[0]),
                field="output",
            )
        if store.put_if_absent(key, canonical_json(mine)):
            return None
        found = _read(store, key) or mine  # another writer was faster
    if found.get("engine") != engine or (found.get("work") != mine["work"] and not force):
        raise BadInputError(
            f"{store.uri} holds the results of {found.get('of', 'other work')}, not of {of}; choose another "
            "folder, or replace them with force",
            code="output_exists",
            file=store.uri,
            field="output",
        )
    foreign = [one for name in names for one in store.list(name) if one not in known]
    if foreign:
        raise BadInputError(
            f"{store.uri_of(foreign[0])} lies where {engine} writes, and no {engine} of EMEP wrote it; "
            "choose another folder, or move it away",
            code="output_exists",
            file=store.uri_of(foreign[0]),
            field="output",
        )
    if found != mine:
        store.put_bytes(key, canonical_json(mine))
    return found


def refuse_inputs(store: ArtifactStore, names: Iterable[str], inputs: Iterable[Path], engine: str) -> None:
    """Raise BadInputError where what an engine is to write is, or holds, something that it reads.

    Links are resolved first.
    """
    written = [uri_to_path(store.uri_of(name)).resolve() for name in names]
    for place in inputs:
        real = place.resolve()
        if any(real.is_relative_to(path) for path in written):
            raise BadInputError(
                f"{place} is an input, and {engine} writes there; choose another folder for its results",
                code="output_refused",
                file=str(place),
                field="output",
            )


def _read(store: ArtifactStore, key: str) -> dict[str, Any] | None:
    if not store.exists(key):
        return None
    try:
        document = json.loads(store.get_bytes(key))
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"of": "work that its claim does not name"}
