"""An error as a page with one sentence, for a browser that opens a page of EMEP's."""

from __future__ import annotations

from urllib.parse import quote

from emep.ui.html import Html, document, link, paragraph, shown

UNAUTHORIZED = 401


def error_page(status: int, title: str, sentence: str, address: str, root: str) -> str:
    """The page. ``address`` is the path that was asked for: a login leads back to it."""
    base = root.removesuffix("/emep")
    parts = [Html(f"<h1>{status} {shown(title)}</h1>")]
    if status == UNAUTHORIZED:
        parts.append(paragraph("You are not logged in to Airflow, or no longer."))
        parts.append(paragraph(link(f"{base}/api/v2/auth/login?next={quote(address)}", "Log in")))
    else:
        parts.append(paragraph(sentence[:1].upper() + sentence[1:] + ("" if sentence.endswith(".") else ".")))
        parts.append(paragraph(link(f"{base}/", "Airflow")))
    return document(f"{status} {title}", [Html(f"<main>{''.join(parts)}</main>")])
