"""Reads files on Airflow's worker, but only those that a job of the run could read as well.

Otherwise a form could show any file that Airflow's user may open.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from emep import layout
from emep.dagkit.settings import artifact_uri
from emep.policy import PolicyError, load_policy
from emep.settings import policy_file

MAX_BYTES = 1024**2


class UnreadableError(Exception):
    """A file that cannot be read, in words that follow its name. They quote nothing of it."""


def read_text(path: str, root: str | None, project: str | None, user: str | None = None) -> str:
    """The text of a file below ``root``, the policy's ``roots``, or the runs of ``project``.

    ``user`` is whose run asks: the runs of a project whose members the policy lists are read for these
    alone, since a task's fields show what was read before its job is refused; None: it does not matter. The
    file that is opened counts, links resolved, not its name. Raises UnreadableError.
    """
    roots = _roots(root, project, user)
    try:
        _check_below(os.path.realpath(path), roots)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # NUL, half a surrogate pair
        raise UnreadableError(f"cannot be read: {error}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableError("cannot be read: it is no file")
        _check_below(_opened(descriptor, path), roots)
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UnreadableError("cannot be read: it has more than 1 MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError("cannot be read: it is not UTF-8 text") from None


def _opened(descriptor: int, path: str) -> str:
    """Where the open file lies."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.path.realpath(path)


def _check_below(real: str, roots: Sequence[str]) -> None:
    if not any(real.startswith(f"{root.rstrip('/')}/") for root in map(os.path.realpath, roots)):
        raise UnreadableError(
            f"lies outside of what jobs of this run may read ({', '.join(roots) or 'nothing'}); put "
            f"it there, or ask "
            "an administrator to add its folder to the policy's roots.read"
        )


def _roots(root: str | None, project: str | None, user: str | None) -> list[str]:
    found = [root] if root and root.startswith("/") else []
    try:
        path = policy_file()
        policy = load_policy(path) if path is not None else None
    except (PolicyError, OSError):
        policy, is_known = None, False
    else:
        is_known = True
    if policy is not None:
        found += [*policy.roots.read, *policy.roots.write]
    parts, project = urlsplit(artifact_uri()), project or "default"
    if parts.scheme not in ("", "file"):
        return found
    if user is None or (is_known and (policy is None or policy.may_charge(project, user))):
        inner = layout.project_folder(project)
    else:
        inner = layout.user_folder(project, user)
    return [*found, str(Path(unquote(parts.path)) / inner)]
