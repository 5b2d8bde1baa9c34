"""Decides what a job may read and write, from the job as it is stored and never from its SPEC.

The engine's process holds the confines where files are opened (links and ``..`` are resolved
there). The check at ``POST /jobs`` refuses early, in one sentence, what can never be allowed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from emep.layout import checkpoint_folder, job_folder, project_folder, run_folder
from emep.ledger.store.tables import Job
from emep.policy.sections import RootsPolicy
from emep.wire.engines import ENGINE_NAMES
from emep.wire.errors import InvalidError

VARIABLE = "EMEP_CONFINES"
_RUN = ("project", "user", "dag_id", "run_id")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST, _LONGEST_NAME, _DEEPEST = 4000, 255, 150


def own_folder(job: Job) -> str:
    """The folder of the job's run, below ``artifact_uri``."""
    if job.dag_id and job.run_id:
        return run_folder(job.project, job.user, job.dag_id, job.run_id)
    return job_folder(job.project, job.id)


def confines(job: Job, roots: RootsPolicy) -> str:
    """The confines of a job as the JSON document that its engine's process reads."""
    return json.dumps(
        {
            "version": 1,
            "run": own_folder(job),
            "project": project_folder(job.project),
            "checkpoints": checkpoint_folder(job.user, job.checkpoint_key),
            "read": list(roots.read),
            "write": list(roots.write),
        },
        sort_keys=True,
    )


def check_spec(values: Mapping[str, Any], artifact_uri: str, roots: RootsPolicy) -> None:
    """Refuse a request whose SPEC names what its job may not read or write.

    ``values``: the job's columns as they will be stored. Raises InvalidError that names the field.
    """
    spec = values["spec"]
    if not isinstance(spec, Mapping):
        return
    root = local_path(artifact_uri) if artifact_uri else None
    own = None
    if root and values["dag_id"] and values["run_id"]:
        own = f"{root}/{run_folder(*(values[name] for name in _RUN))}"
    writable = [*([own] if own else []), *roots.write]
    _check_written("spec.output_uri", spec.get("output_uri"), writable, own)
    given = spec.get("input")
    if spec.get("engine") not in ENGINE_NAMES or not isinstance(given, Mapping):
        return
    readable = [*writable, *roots.read, *([f"{root}/{project_folder(values['project'])}"] if root else [])]
    for field, text in named_paths(given, "spec.input"):
        if field == "spec.input.run_uri":
            _check_written(field, text, writable, own)
            continue
        path = local_path(text)
        if path is None or not _below(path, readable):
            raise InvalidError(
                f"{field}: {_shown(text)} lies outside of what this job may read: runs of project "
                f"{values['project']} and the policy's roots.read ({_listed(roots.read)}). Put it "
                f"there, or ask "
                "an administrator to add its folder to roots.read",
                field=field,
            )


def _check_written(field: str, given: Any, writable: list[str], own: str | None) -> None:
    if given is None or given == "":
        return
    if not isinstance(given, str):
        raise InvalidError(f"{field}: text is needed, not {type(given).__name__}", field=field)
    if _CONTROL.search(given) or _CONTROL.search(unquote(given)):
        raise InvalidError(
            f"{field}: {_shown(given)} has a control character; name a folder in plain text", field=field
        )
    names = unquote(given).split("/")
    if (
        len(names) > _DEEPEST
        or len(given.encode("utf-8", "surrogatepass")) > _LONGEST
        or any(len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME for name in names)
    ):
        raise InvalidError(
            f"{field}: {_shown(given)} is too long; a path has {_LONGEST} bytes at most, a name in it "
            f"{_LONGEST_NAME}, and {_DEEPEST} folders at most lie in one another",
            field=field,
        )
    if is_relative(given):
        if ".." not in given.split("/"):
            return
    else:
        path = local_path(given)
        if path is not None and _below(path, writable):
            return
    where = own or "the job's own folder"
    raise InvalidError(
        f"{field}: {_shown(given)} lies outside of what this job may write: {where} and the "
        f"policy's roots.write. "
        "Leave the field out, or give a relative path without '..', which starts there",
        field=field,
    )


def named_paths(node: Any, field: str) -> Iterator[tuple[str, str]]:
    """Each absolute path or file URI inside an engine's input, with the name of its field."""
    waiting = [(field, node)]  # no recursion: a request may nest as deeply as it likes
    while waiting:
        field, node = waiting.pop()
        if isinstance(node, str):
            if node.lstrip().startswith(("/", "~")) or urlscheme(node.lstrip()) == "file":
                yield field, node.strip()
        elif isinstance(node, Mapping):
            waiting.extend((f"{field}.{key}", item) for key, item in node.items())
        elif isinstance(node, list | tuple):
            waiting.extend((f"{field}[{index}]", item) for index, item in enumerate(node))


def is_relative(text: str) -> bool:
    """Whether a path starts at the run's own folder."""
    return not text.startswith(("/", "~")) and "://" not in text and urlscheme(text) != "file"


def urlscheme(text: str) -> str:
    """The scheme of a URI in small letters; empty where the text is none."""
    head, colon, _ = text.partition(":")
    return head.lower() if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", head) else ""


def local_path(text: str) -> str | None:
    """The path that a path or ``file://`` URI means, with ``..`` taken out; None where it is no local one."""
    if urlscheme(text) == "file":
        try:
            parts = urlsplit(text)
        except ValueError:
            return None
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            return None
        text = unquote(parts.path)
    if not text.startswith("/") or "\0" in text:
        return None
    return posixpath.normpath("/" + text.lstrip("/"))


def _below(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _listed(roots: Iterable[str]) -> str:
    return ", ".join(roots) or "none"


def _shown(text: str) -> str:
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    return repr(shown) if _CONTROL.search(shown) else shown
