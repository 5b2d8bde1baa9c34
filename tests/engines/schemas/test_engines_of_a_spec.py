"""A SPEC may name every engine that is registered, a site's own included."""

from __future__ import annotations

import json

import pytest

from engines.contract import ENGINES, BadInputError, EngineEntry
from engines.schemas import load_schema, read_document


def spec(tmp_path, engine):
    path = tmp_path / "SPEC.json"
    path.write_text(json.dumps({"engine": engine}))
    return path


def test_the_schema_names_the_registered_engines():
    assert load_schema("spec")["properties"]["engine"]["enum"] == list(ENGINES)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_registered_engine_is_taken(tmp_path, engine):
    assert read_document("spec", spec(tmp_path, engine))["engine"] == engine


def test_an_engine_of_a_site_s_own_is_taken_once_it_is_registered(tmp_path, monkeypatch):
    path = spec(tmp_path, "distill")
    with pytest.raises(BadInputError, match="'distill' must be one of compatibility_check, merge"):
        read_document("spec", path)
    monkeypatch.setitem(ENGINES, "distill", EngineEntry("site.distill:run"))
    assert read_document("spec", path)["engine"] == "distill"
