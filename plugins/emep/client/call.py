"""One request to the API as data: what is sent, how its answer is read, whether it may be sent again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from emep.client.errors import EmepApiError

T = TypeVar("T")

ANSWER_MARGIN = 20.0
"""Seconds that an answer may take, for a long poll beyond the time that it was told to wait."""


class Document(Protocol):
    """A pydantic model, as far as it is used here."""

    def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, Any]: ...  # noqa: D102


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. ``answer`` names the schema that the answer is read as; None leaves it as JSON."""

    method: str
    path: str
    answer: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Document | Mapping[str, Any] | bytes | None = None
    repeatable: bool = True
    """Doing it twice is the same as doing it once."""
    wait: float = 0.0
    """Seconds that the server may hold the answer back (long poll)."""
    airflow: bool = False
    """The path stands below Airflow's own URL, not below EMEP's."""

    def request_arguments(self) -> dict[str, Any]:
        """Arguments of httpx's ``build_request`` beside method and URL."""
        arguments: dict[str, Any] = {"params": {k: v for k, v in self.params.items() if v is not None}}
        if isinstance(self.body, bytes):
            arguments["content"] = self.body
            arguments["headers"] = {"Content-Type": "application/octet-stream"}
        elif isinstance(self.body, Mapping):
            arguments["json"] = dict(self.body)
        elif self.body is not None:
            # What was left out stays out, so that the server's defaults hold.
            arguments["json"] = self.body.model_dump(mode="json", exclude_unset=True)
        return arguments

    def read(self, document: Any) -> T:
        """The answer as its model. Raises EmepApiError where the server speaks another language."""
        if self.answer is None:
            return document  # type: ignore[no-any-return]
        from emep.wire.documents import document as model_of

        try:
            return model_of(self.answer).model_validate(document)  # type: ignore[return-value]
        except ValueError as error:
            first = str(error).splitlines()[1:2]
            raise EmepApiError(
                200,
                "Unknown answer",
                f"{self.method} {self.path} answered something other than a {self.answer} "
                f"({', '.join(first)}): are client and server of one version?",
            ) from error


def at(*parts: object) -> str:
    """A path whose parts are quoted: a job id with a slash stays one part."""
    return "".join("/" + quote(str(part), safe=":") for part in parts)
