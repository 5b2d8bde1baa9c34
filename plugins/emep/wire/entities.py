"""Names of fair-share entities as people write them: ``queue:merge``, ``org/team``, ``org/team@alice``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emep.wire.errors import InvalidError

QUEUE_PREFIX = "queue:"
FORMS = "queue:NAME, a project such as org/team, or a user in one such as org/team@alice"


@dataclass(frozen=True)
class EntityName:
    """What an override weighs."""

    kind: Literal["queue", "project", "user"]
    path: str
    """The queue, or the project."""
    user: str = ""

    @property
    def text(self) -> str:
        """As people write it."""
        if self.kind == "queue":
            return QUEUE_PREFIX + self.path
        return f"{self.path}@{self.user}" if self.kind == "user" else self.path

    @property
    def policy_key(self) -> str:
        """As ``Policy.with_weights`` names it."""
        return f"user:{self.path}/{self.user}" if self.kind == "user" else f"{self.kind}:{self.path}"


def parse_entity(text: str) -> EntityName:
    """The entity that ``text`` names; the user begins after the first ``@``.

    Raises InvalidError with the forms that there are.
    """
    if len(text) > 250:
        raise InvalidError("entity: at most 250 characters name an entity", field="entity")
    if not text.isprintable():
        raise InvalidError(f"entity: use printable text: {FORMS}", field="entity")
    if text.startswith(QUEUE_PREFIX):
        name = text.removeprefix(QUEUE_PREFIX)
        if not name:
            raise InvalidError(f"entity: {text!r} names no queue; write {FORMS}", field="entity")
        return EntityName("queue", name)
    project, at, user = text.partition("@")
    if not all(part.strip() for part in project.split("/")) or (at and not user) or "/" in user:
        raise InvalidError(f"entity: {text!r} is none; write {FORMS}", field="entity")
    return EntityName("user", project, user) if at else EntityName("project", project)
