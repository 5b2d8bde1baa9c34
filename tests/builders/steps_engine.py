"""A stand-in for ``emep-engine`` that does exactly what its SPEC's steps say, so that a test controls its end.

``run SPEC.json``; steps: ["print", TEXT], ["environment", NAME...], ["wait", FILE] until it exists, ["on_term",
CODE] end with that status on SIGTERM, ["ignore_term"], ["result", DOCUMENT], ["detach", FILE] leave a process
in a session of its own that writes its pid, ["pid", FILE], ["burn", SECONDS] of CPU, ["exit", CODE].
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.02)


def write(path, text):
    temporary = Path(f"{path}.part")
    temporary.write_text(text)
    temporary.rename(path)


def burn(seconds):
    while time.process_time() < float(seconds):
        sum(range(1000))


def main():
    command, spec = sys.argv[1:]
    assert command == "run"
    for name, *values in json.loads(Path(spec).read_text())["input"]["steps"]:
        if name == "print":
            print(*values, flush=True)
        elif name == "environment":
            print(json.dumps({key: os.environ.get(key) for key in values or os.environ}), flush=True)
        elif name == "wait":
            wait_for(values[0])
        elif name == "on_term":
            signal.signal(
                signal.SIGTERM, lambda *_, code=values[0]: (print("told to end", flush=True), sys.exit(code))
            )
        elif name == "ignore_term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif name == "result":
            write(os.environ["EMEP_RESULT_PATH"], json.dumps(values[0]))
        elif name == "detach":
            child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
            write(values[0], str(child.pid))
        elif name == "pid":
            write(values[0], str(os.getpid()))
        elif name == "burn":
            burn(values[0])
        elif name == "exit":
            sys.exit(values[0])


if __name__ == "__main__":
    main()
