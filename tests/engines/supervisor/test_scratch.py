"""A supervisor keeps its environment, with the lease's token, from its user's other processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from engines.supervisor.scratch import Scratch

SOURCE = Path(__file__).parents[3] / "include" / "engines" / "supervisor" / "scratch.py"
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of another user")
@pytest.mark.skipif(PYTHON is None, reason="there is no Python that another user may run")
@pytest.mark.parametrize(("hides", "seen"), [(False, True), (True, False)])
def test_others_of_its_user_cannot_read_a_supervisors_environment(hides: bool, seen: bool) -> None:
    """Without it they could, which shows that the reader would have seen it."""
    program = SOURCE.read_text() + "\nimport sys\n"
    program += ("hide_from_own_user()\n" if hides else "") + "print('up', flush=True)\nsys.stdin.read()"
    as_other = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    supervisor = subprocess.Popen(
        [str(PYTHON), "-c", program],
        env={"EMEP_LEASE_TOKEN": "the-token"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **as_other,  # type: ignore[call-overload]
    )
    try:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"up\n"
        reading = f"import sys; sys.stdout.write(open('/proc/{supervisor.pid}/environ').read())"
        read = subprocess.run(
            [str(PYTHON), "-c", reading],
            capture_output=True,
            text=True,
            check=False,
            **as_other,  # type: ignore[call-overload]
        )
        assert ("the-token" in read.stdout) == seen
    finally:
        supervisor.communicate()


def test_the_folder_for_temporary_files_goes_with_its_run(tmp_path: Path) -> None:
    scratch = Scratch()
    assert scratch.make({}) == {}
    made = scratch.make({"EMEP_CONFINES": "{}", "TMPDIR": str(tmp_path)})
    folder = Path(made["EMEP_SCRATCH"])
    (folder / "file").write_text("x")
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0
    scratch.remove()
    assert not folder.exists()
