"""A stand-in for ``emep-engine`` that does exactly what its SPEC's steps say, so a test controls its end.

``run SPEC.json``; steps: ["print", TEXT], ["environment", NAME...], ["wait", FILE] until it exists,
["on_term", CODE] end with that status on SIGTERM, ["ignore_term"], ["result", DOCUMENT],
["result_text", TEXT], ["detach", FILE] leave a process in a session of its own and write its pid,
["pid", FILE], ["exit", CODE].
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def write(path, text):
    temporary = Path(f"{path}.part")
    temporary.write_text(text)
    temporary.rename(path)


def environment(*names):
    print(json.dumps({key: os.environ.get(key) for key in names or os.environ}), flush=True)


def wait(path):
    while not Path(path).exists():
        time.sleep(0.02)


def on_term(code):
    def end(*_):
        print("told to end", flush=True)
        sys.exit(code)

    signal.signal(signal.SIGTERM, end)


def detach(path):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    write(path, str(child.pid))


STEPS = {
    "print": lambda *words: print(*words, flush=True),
    "environment": environment,
    "wait": wait,
    "on_term": on_term,
    "ignore_term": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "result": lambda document: write(os.environ["EMEP_RESULT_PATH"], json.dumps(document)),
    "result_text": lambda text: write(os.environ["EMEP_RESULT_PATH"], text),
    "detach": detach,
    "pid": lambda path: write(path, str(os.getpid())),
    "exit": sys.exit,
}

if __name__ == "__main__":
    assert sys.argv[1] == "run"
    for step, *values in json.loads(Path(sys.argv[2]).read_text())["input"]["steps"]:
        STEPS[step](*values)
