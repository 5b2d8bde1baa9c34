"""Engines as another user: what the agent gives that user, and what it never does."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from emep.agent.run_as import RunAs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts engines as another user")
USER = "nobody"


@pytest.mark.parametrize("how", ["plain", "hard link", "link", "pipe", "none"])
def test_a_trackers_file_is_given_away_only_where_it_is_the_trackers(tmp_path: Path, how: str) -> None:
    """The folder is the engines' user's, who may put any file of the machine there under that name."""
    tracker, secret = tmp_path / "tracker", tmp_path / "secret"
    secret.write_text("root's")
    tracker.mkdir()
    events = tracker / "events.jsonl"
    if how == "plain":
        events.write_text("")
    elif how == "hard link":
        os.link(secret, events)
    elif how == "link":
        events.symlink_to(secret)
    elif how == "pipe":
        os.mkfifo(events)
    RunAs.parse(USER).prepare({"EMEP_TRACKER_URI": tracker.as_uri()})
    uid = pwd.getpwnam(USER).pw_uid
    assert tracker.stat().st_uid == uid
    assert secret.stat().st_uid == 0
    if how != "none":
        assert events.lstat().st_uid == (uid if how == "plain" else 0)
