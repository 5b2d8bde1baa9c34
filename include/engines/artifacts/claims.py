"""Whose outputs a folder holds: an engine replaces what the same engine wrote of the same work, no more.

Beside its outputs an engine leaves a claim, a small JSON file that says which engine wrote them and of what.
Outputs without a claim are somebody's own files; a claim of other work is another result. Neither is replaced
unless the caller says so, and foreign files never are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

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
) -> dict[str, Any] | None:
    """Claim ``names`` in ``store`` for an engine before it writes them; the claim that stood there, or None.

    ``work`` is what tells this work from other work (JSON values), ``of`` says it to people ("model /m/a").
    ``force`` replaces outputs of other work. Raises BadInputError where one of the names is taken by what no
    such engine wrote, and, without ``force``, by another work's outputs.
    """
    key = f"emep_{engine}.json"
    mine = {"schema_version": SCHEMA_VERSION, "engine": engine, "work": dict(work), "of": of}
    found = _read(store, key)
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
    if found != mine:
        store.put_bytes(key, canonical_json(mine))
    return found


def _read(store: ArtifactStore, key: str) -> dict[str, Any] | None:
    if not store.exists(key):
        return None
    try:
        document = json.loads(store.get_bytes(key))
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"of": "work that its claim does not name"}
