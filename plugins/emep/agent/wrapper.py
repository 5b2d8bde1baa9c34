"""What stands between the agent and an engine's supervisor: a script of its own, standard library only.

``python -I -S wrapper.py RUN_DIR READY_FD -- COMMAND...`` is started in a new session. It claims the run (so
that the same run cannot be started twice, whoever tries), starts the command, and writes down how it ended,
because an agent that was killed in between cannot ask the kernel. It also adopts what the command leaves
behind and ends it, so that a run that is over uses no GPU any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

ALREADY_CLAIMED = 97
"""Exit status: another wrapper has this run."""
_PR_SET_CHILD_SUBREAPER = 36


def write_json(path: str, document: dict[str, object]) -> None:
    """Write beside, then rename: a reader sees all of it or nothing."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def identity(pid: int) -> dict[str, object]:
    """Pid, start time and boot of a process, as ``emep.agent.process`` reads them."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        text = file.read()
    boot = ""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    fields = text[text.rindex(")") + 2 :].split()
    return {"pid": pid, "start_ticks": int(fields[19]), "boot_id": boot}


def claim(run_dir: str) -> bool:
    """Take the run for this process; False if it is taken (or the folder is gone: the run was given up)."""
    temporary = os.path.join(run_dir, f".claim-{os.getpid()}")
    try:
        write_json(temporary, identity(os.getpid()))
        os.link(temporary, os.path.join(run_dir, "claim.json"))
    except (FileExistsError, FileNotFoundError):
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return True


def end_children() -> None:
    """SIGKILL every child until none is left; orphans of a child become children of the subreaper."""
    while True:
        with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
            for child in file.read().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.01)


def run(run_dir: str, ready: int, command: list[str]) -> int:
    """Claim, start, wait, write down. Returns the exit status (128 + signal where one ended the command)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Handlers, not SIG_IGN: what is ignored would stay ignored in the command.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    if not claim(run_dir):
        return ALREADY_CLAIMED
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"emep agent: {command[0]} cannot be started: {error.strerror}\n")
        write_json(os.path.join(run_dir, "exit.json"), {"exit_code": 127, "time": time.time()})
        return 127
    with contextlib.suppress(OSError):
        write_json(os.path.join(run_dir, "supervisor.json"), identity(child.pid))
    # The agent may be gone, and then nobody reads.
    with contextlib.suppress(OSError):
        os.write(ready, b"started\n")
    os.close(ready)
    code = child.wait()
    code = 128 - code if code < 0 else code
    end_children()
    # The folder may have been removed under us; then nobody wants to know.
    with contextlib.suppress(OSError):
        write_json(os.path.join(run_dir, "exit.json"), {"exit_code": code, "time": time.time()})
    return code


if __name__ == "__main__":
    separator = sys.argv.index("--")
    sys.exit(run(sys.argv[1], int(sys.argv[2]), sys.argv[separator + 1 :]))
