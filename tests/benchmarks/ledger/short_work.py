"""A supervisor that does next to nothing, standard library only: ``short_work.py run SPEC.json``.

It renews its lease, keeps its GPUs for ``input.seconds``, completes, and leaves in ``input.witness`` a file
that says from when to when it had which GPUs.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request


def call(action: str, body: dict[str, object]) -> None:
    """One call of the lease's routes."""
    url = f"{os.environ['EMEP_API_URL']}/allocations/{os.environ['EMEP_ALLOCATION_ID']}/{action}"
    headers = {
        "Authorization": f"Bearer emep-lease.{os.environ['EMEP_LEASE_TOKEN']}",
        "Content-Type": "application/json",
    }
    data = json.dumps({"epoch": int(os.environ["EMEP_LEASE_EPOCH"]), **body}).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - the API's URL, from the agent
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        answer.read()


def main() -> int:
    """Hold the GPUs for a while."""
    begin = time.time()
    with open(sys.argv[2], encoding="utf-8") as file:
        given = json.load(file)["input"]
    call("heartbeat", {})
    time.sleep(float(given["seconds"]))
    end = time.time()
    path = os.path.join(given["witness"], f"{os.environ['EMEP_ALLOCATION_ID']}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"gpus": os.environ["EMEP_GPU_INDICES"], "begin": begin, "end": end}, file)
    call("complete", {"exit_code": 0})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
