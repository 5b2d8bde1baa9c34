"""Script between the agent and an engine's supervisor; it uses the standard library only.

``python -I -S wrapper.py RUN_DIR READY_FD [--as UID:GID:GROUPS] -- COMMAND...`` runs in a new session. It
claims the run, so that the same run cannot be started twice, and starts the command. It writes down how the
command ended, because an agent that was killed in between cannot ask the kernel. It also adopts and ends
processes that the command leaves behind, so that a run that is over uses no GPU any more.

It imports very little, and formats its few numbers as JSON by itself, because a GPU waits while it starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

ALREADY_CLAIMED = 97
"""Exit status: another wrapper has this run."""
_PR_SET_CHILD_SUBREAPER = 36


def write(path: str, text: str) -> None:
    """Write beside, then rename: a reader sees all of it or nothing."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_if_possible(path: str, text: str) -> None:
    """``write``, but ignore a folder that was removed meanwhile: then no process reads the file."""
    try:
        write(path, text)
    except OSError:
        return


def read(path: str) -> str:
    """A file of the kernel's."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def identity(pid: int) -> str:
    """Pid, start time and boot of a process, as ``emep.agent.process`` reads them: a JSON object."""
    text = read(f"/proc/{pid}/stat")
    try:
        boot = read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        boot = ""
    fields = text[text.rindex(")") + 2 :].split()
    return f'{{"pid": {pid}, "start_ticks": {int(fields[19])}, "boot_id": "{boot}"}}'


def ended(code: int) -> str:
    """How the command ended, and when: a JSON object."""
    return f'{{"exit_code": {code}, "time": {time.time()!r}}}'


def claim(run_dir: str) -> bool:
    """Take the run for this process; False if it is taken (or the folder is gone: the run was given up)."""
    temporary = os.path.join(run_dir, f".claim-{os.getpid()}")
    try:
        write(temporary, identity(os.getpid()))
        os.link(temporary, os.path.join(run_dir, "claim.json"))
    except (FileExistsError, FileNotFoundError):
        return False
    finally:
        try:  # noqa: SIM105 - see above what is imported
            os.unlink(temporary)
        except OSError:
            pass
    return True


def end_children() -> None:
    """SIGKILL every child until none is left; orphans of a child become children of the subreaper."""
    while True:
        try:
            for child in read(f"/proc/self/task/{os.getpid()}/children").split():
                os.kill(int(child), signal.SIGKILL)
        except OSError:
            pass
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.01)


def spawn(command: list[str]) -> int:
    """Start the command with no input; its pid. Raises OSError where there is no such program."""
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    # The command must not inherit the signals that Python ignores for itself.
    own = [signal.SIGPIPE, signal.SIGXFSZ]
    return os.posix_spawnp(command[0], command, os.environ, file_actions=[nothing], setsigdef=own)


def spawn_as(command: list[str], words: str) -> int:
    """``spawn`` as another user, with no way back; ``words``: UID:GID:GROUP,GROUP."""
    user, group, groups = words.split(":")
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.setgroups([int(one) for one in groups.split(",") if one])
        os.setresgid(int(group), int(group), int(group))
        os.setresuid(int(user), int(user), int(user))
        os.umask(0o022)
        os.execvpe(command[0], command, os.environ)  # noqa: S606 - the words are a list
    except OSError as error:
        sys.stderr.write(f"emep agent: {command[0]} cannot be started as user {user}: {error.strerror}\n")
        sys.stderr.flush()
    os._exit(127)


def run(run_dir: str, ready: int, command: list[str], words: str | None = None) -> int:
    """Claim, start, wait, write down. Returns the exit status (128 + signal where one ended the command)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.set_inheritable(ready, False)
    # Handlers, not SIG_IGN: what is ignored would stay ignored in the command.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    if not claim(run_dir):
        return ALREADY_CLAIMED
    try:
        child = spawn(command) if words is None else spawn_as(command, words)
    except OSError as error:
        sys.stderr.write(f"emep agent: {command[0]} cannot be started: {error.strerror}\n")
        write(os.path.join(run_dir, "exit.json"), ended(127))
        return 127
    try:  # noqa: SIM105
        write(os.path.join(run_dir, "supervisor.json"), identity(child))
    except OSError:
        pass  # the folder was removed meanwhile, so no process reads the file
    try:  # noqa: SIM105
        os.write(ready, b"started\n")
    except OSError:
        pass  # the agent is gone, so the pipe has no reader
    os.close(ready)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 128 - code if code < 0 else code
    end_children()
    write_if_possible(os.path.join(run_dir, "exit.json"), ended(code))
    return code


if __name__ == "__main__":
    separator = sys.argv.index("--")
    words = sys.argv[4] if sys.argv[3] == "--as" else None
    status = run(sys.argv[1], int(sys.argv[2]), sys.argv[separator + 1 :], words)
    sys.stderr.flush()
    os._exit(status)
