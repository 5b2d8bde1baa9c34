"""The API's description as one plain page: no script, nothing loaded from another host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 13px/1.45 ui-monospace, monospace }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8884; border-radius: 6px }
details { margin: .35rem 0 } summary { cursor: pointer }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600 }
table { border-collapse: collapse }
td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top }
"""


def page(description: Mapping[str, Any], root: str = "") -> str:
    """HTML of an OpenAPI document: every operation with its parameters, every schema as JSON.

    ``root`` is where the app is mounted; it stands before every path.
    """
    info = description["info"]
    operations = "".join(
        _operation(root + path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(
        f"<details><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>"
        for name, schema in sorted(description.get("components", {}).get("schemas", {}).items())
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])}</h1><p>{escape(info.get('description', ''))}</p>"
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"<h2>Routes</h2>{operations}<h2>Documents</h2>{schemas}</html>"
    )


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(entry['name'])}</code><td>{escape(entry['in'])}"
        f"<td>{escape(str(entry.get('schema', {}).get('type', '')))}"
        f"<td>{escape(entry.get('description', ''))}"
        for entry in operation.get("parameters", ())
    )
    table = f"<table><tr><th>parameter<th>in<th>type<th>{rows}</table>" if rows else ""
    body = operation.get("requestBody")
    return (
        f'<details><summary><span class="method">{escape(method.upper())}</span> <code>{escape(path)}</code> '
        f"{escape(operation.get('summary', ''))}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p>{table}"
        f"{'<p>Body:</p>' + _json(body['content']) if body else ''}</details>"
    )


def _json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=1))}</pre>"
