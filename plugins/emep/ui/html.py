"""Pieces of a page: the frame with its style, tables, moments. What goes in as text comes out escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 68rem; margin: 1.5rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: .5rem 0 } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem }
code, pre { font: 13px/1.45 ui-monospace, monospace }
pre { overflow: auto; max-height: 30rem; padding: .75rem; border: 1px solid #8886; border-radius: 6px }
nav a { margin-right: 1.2rem }
table { border-collapse: collapse; width: 100% } .wide { overflow-x: auto }
td, th { padding: .25rem 1rem .25rem 0; text-align: left; vertical-align: top }
td, th { border-bottom: 1px solid #8884 }
th { font-weight: 600 } .facts th { width: 11rem }
td { overflow-wrap: break-word } time { white-space: nowrap }
.numbers td + td, .numbers th + th { text-align: right; white-space: nowrap }
.state { display: inline-block; padding: 0 .7rem; border: 2px solid; border-radius: 1rem; font-size: 1rem }
.lead { font-size: 1.05rem } .stale { padding: .5rem .8rem; border: 2px solid #c60; border-radius: 6px }
.quiet { opacity: .75 }
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; script-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every page: only this site's own script and this style run."""


class Html(str):
    """Markup that is safe as it is; any other text is escaped."""

    __slots__ = ()


def shown(value: Any) -> Html:
    """A value as markup."""
    if isinstance(value, Html):
        return value
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        text = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
        return Html(f'<time datetime="{moment.isoformat()}">{text}</time>')
    return Html(escape(str(value)))


def document(title: str, body: Iterable[Html], script: str = "") -> str:
    """A whole page. ``script``: path of this site's script that keeps it fresh."""
    tail = f'<script src="{escape(script)}" defer></script>' if script else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>{tail}</head><body>"
        '<p id="stale" class="stale" role="status" hidden></p>'
        f"{''.join(body)}</body></html>"
    )


def link(address: str, text: str) -> Html:
    """A link to a path of this site."""
    return Html(f'<a href="{escape(address)}">{escape(text)}</a>')


def facts(rows: Iterable[tuple[str, Any]]) -> Html:
    """Names with their values; those without a value are left out."""
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{shown(value)}</td></tr>'
        for name, value in rows
        if value not in (None, "")
    )
    return Html(f'<table class="facts">{lines}</table>' if lines else "")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "") -> Html:
    """A table with a header; ``kind`` ``numbers`` sets all columns but the first to the right."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    lines = "".join(f"<tr>{''.join(f'<td>{shown(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return Html(f'<div class="wide"><table class="{escape(kind)}"><tr>{head}</tr>{lines}</table></div>')


def section(title: str, *parts: Html) -> Html:
    """A heading and what belongs to it; nothing where all of that is empty."""
    inside = "".join(parts)
    return Html(f"<section><h2>{escape(title)}</h2>{inside}</section>" if inside else "")


def paragraph(text: Any, kind: str = "") -> Html:
    """One paragraph."""
    return Html(f'<p class="{escape(kind)}">{shown(text)}</p>')
