"""The quick check of documents: it vouches for nothing that the real validator refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from engines.schemas import load_schema
from engines.schemas.quick import surely_valid

SPEC: dict[str, Any] = {
    "schema_version": 1,
    "engine": "merge",
    "input": {"models": ["a", "b"], "weight": 0.5},
    "device": "cuda:1",
    "chunked": True,
    "seed": 3,
    "output_uri": "out",
}
RESULT: dict[str, Any] = {
    "schema_version": 1,
    "engine": None,
    "status": "failed",
    "exit_code": 65,
    "outputs": {"model": {"uri": "file:///a", "sha256": "0" * 64, "bytes": 12}},
    "metrics": {"score": 1.5},
    "error": {"code": "bad_input", "message": "no", "file": None, "field": "input"},
    "seconds": 1.5,
    "peak_memory_bytes": 1,
    "resumed_from": None,
    "versions": {"torch": "2"},
    "input_digests": {},
}
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    -1,
    2**64,
    0.5,
    "",
    "auto",
    "cuda:x",
    "cuda:1\n",
    [],
    ["a"],
    {},
]
VALUES += [{"unknown": 1}, {"model": {}}, {"model": {"uri": "a", "sha256": "0" * 63, "bytes": -1}}]


def places(document: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every field of a document."""
    found = [path] if path else []
    if isinstance(document, dict):
        for name, value in document.items():
            found += places(value, (*path, name))
    return found


def changed(
    document: dict[str, Any], path: tuple[str, ...], value: Any, *, drop: bool = False
) -> dict[str, Any]:
    """The document with one field replaced, or dropped."""
    made = deepcopy(document)
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


@pytest.mark.parametrize(("name", "document"), [("spec", SPEC), ("result", RESULT)])
def test_what_it_vouches_for_is_valid(name: str, document: dict[str, Any]) -> None:
    schema = load_schema(name)
    validator = Draft202012Validator(schema)
    tried = [changed(document, path, value) for path in places(document) for value in VALUES]
    tried += [changed(document, path, None, drop=True) for path in places(document)]
    tried += [{**document, "surplus": 1}, {}, document]
    judged = [(surely_valid(schema, one), validator.is_valid(one)) for one in tried]
    assert (True, False) not in judged
    assert surely_valid(schema, document)
    # Most of what is valid needs no second look: floats that are whole numbers do.
    assert judged.count((True, True)) > 0.9 * sum(valid for _, valid in judged)


def test_it_does_not_vouch_for_what_it_does_not_know() -> None:
    assert not surely_valid({"type": "string", "format": "uri"}, "file:///a")
    assert surely_valid({"type": "string", "description": "any"}, "file:///a")


def test_a_run_starts_without_the_validator(tmp_path: Path) -> None:
    path = tmp_path / "SPEC.json"
    path.write_text(json.dumps(SPEC))
    code = (
        "import sys; from pathlib import Path; import engines.cli, engines.supervisor.run;"
        "from engines.supervisor.spec import check_spec; check_spec(Path(sys.argv[1]));"
        "print(sorted({'jsonschema', 'httpx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
