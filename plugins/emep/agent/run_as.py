"""Runs engines as another user than the agent, and gives that user the folders that it must own.

The agent stays root and keeps what engines must not read: its enrolment token, its state folder, the orders
with their lease tokens. Supervisor and engine are started as the other user, without a way back.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from emep.agent.settings import AgentStartError

VARIABLE = "EMEP_RUN_AS"
"""Tells a supervisor that others of its user's processes must not read its environment."""


@dataclass(frozen=True)
class RunAs:
    """A user to start engines as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @classmethod
    def parse(cls, text: str) -> RunAs:
        """From ``USER[:GROUP]``, names or numbers. Raises AgentStartError in one sentence."""
        user, _, group = text.partition(":")
        try:
            found = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        except (KeyError, OverflowError):
            raise AgentStartError(f"--run-as: this machine knows no user {user!r}", usage=True) from None
        gid = found.pw_gid
        if group:
            try:
                gid = (grp.getgrgid(int(group)) if group.isdecimal() else grp.getgrnam(group)).gr_gid
            except (KeyError, OverflowError):
                raise AgentStartError(
                    f"--run-as: this machine knows no group {group!r}", usage=True
                ) from None
        if found.pw_uid == 0:
            raise AgentStartError(
                "--run-as: root may read everything that engines are to be kept from; name another user",
                usage=True,
            )
        if os.geteuid() != 0:
            raise AgentStartError(
                f"--run-as: only an agent that runs as root may start engines as {found.pw_name}; "
                f"start it as "
                "root, or start it as that user and leave --run-as out",
                usage=True,
            )
        groups = tuple(sorted({gid, *os.getgrouplist(found.pw_name, gid)} - {0}))
        return cls(found.pw_name, found.pw_uid, gid, groups, found.pw_dir)

    @property
    def words(self) -> str:
        """``UID:GID:GROUP,GROUP``, as the wrapper takes it."""
        return f"{self.uid}:{self.gid}:{','.join(map(str, self.groups))}"

    def environment(self) -> dict[str, str]:
        """The variables from which programs read their user."""
        return {VARIABLE: self.name, "USER": self.name, "LOGNAME": self.name, "HOME": self.home}

    def check_reach(self, folder: Path) -> None:
        """Raise AgentStartError if the user has no permission to enter ``folder``."""
        for parent in folder.resolve().parents:
            try:
                found = parent.stat()
            except FileNotFoundError:
                continue
            bit = 0o100 if found.st_uid == self.uid else 0o010 if found.st_gid in self.groups else 0o001
            if not found.st_mode & bit:
                raise AgentStartError(
                    f"--run-as: {self.name} cannot reach the state folder {folder}: {parent} is closed "
                    "to it; name another folder with --state-dir, such as /var/lib/emep-agent",
                    usage=True,
                )

    def own(self, path: Path) -> None:
        """Give a file or folder of the agent's to the user, without following links."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Make the folders that the run may write, each the user's, below folders that stay the agent's.

        Raises OSError if they cannot be made, or if a link is in their place.
        """
        confines = json.loads(environment.get("EMEP_CONFINES") or "{}")
        wanted = [(environment.get("EMEP_ARTIFACT_URI"), confines.get("run"))]
        checkpoints, key = environment.get("EMEP_CHECKPOINT_URI") or "", confines.get("checkpoints")
        if key and checkpoints.endswith(f"/{key}"):
            wanted.append((checkpoints.removesuffix(f"/{key}"), key))
        if environment.get("EMEP_TRACKER_URI"):
            wanted.append((environment["EMEP_TRACKER_URI"], "."))
        for uri, inner in wanted:
            root = _local(uri)
            if root is not None and inner:
                self._make_beneath(root, inner)
                if inner == ".":  # the tracker's file, where the agent was started without --run-as before
                    self._own_file(root / "events.jsonl")

    def _own_file(self, path: Path) -> None:
        """Give the user a file in a folder of its own: a plain one that has this one name.

        Who may write there can link any file of the machine to the name, so what is open counts.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags)
        except OSError:  # none, a link, a device: not the tracker's file
            return
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                os.fchown(descriptor, self.uid, self.gid)
        finally:
            os.close(descriptor)

    def _make_beneath(self, root: Path, inner: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in Path(inner).parts:
                with suppress(FileExistsError):  # an earlier run's
                    os.mkdir(part, 0o755, dir_fd=descriptor)
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                inside = os.open(part, flags, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inside
            os.fchown(descriptor, self.uid, self.gid)
        finally:
            os.close(descriptor)


def _local(uri: str | None) -> Path | None:
    if not uri:
        return None
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return None
    path = Path(unquote(parts.path) if parts.scheme else uri)
    return path if path.is_absolute() else None
