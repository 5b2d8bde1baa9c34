from __future__ import annotations

from pathlib import Path

import pytest
from tests.builders.scheduling import a_node

from emep.simulation.read.errors import InputError
from emep.simulation.read.failures import Failure, read_failures

NODES = [a_node("n-0").gpus(8).build(), a_node("n-1").gpus(8).build()]


def failures(folder: Path, text: str) -> Path:
    path = folder / "failures.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_nodes_and_gpus_go_down_and_up_in_order_of_time(tmp_path: Path) -> None:
    text = "time,target,event\n20,n-1:3,up\n10,n-1:3,down\n5,n-0,down\n"
    assert read_failures(failures(tmp_path, text), NODES) == [
        Failure(5.0, "n-0", None, down=True),
        Failure(10.0, "n-1", 3, down=True),
        Failure(20.0, "n-1", 3, down=False),
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("5,n-2,down", "failures.csv:2: target: no such node 'n-2': did you mean 'n-"),
        ("5,n-0:8,down", "failures.csv:2: target: n-0 has GPUs 0 to 7, not '8'"),
        ("5,n-0:x,down", "failures.csv:2: target: n-0 has GPUs 0 to 7, not 'x'"),
        ("5,m:0,down", "failures.csv:2: target: no such node 'm'"),
        ("5,n-0,donw", "failures.csv:2: event: unknown value 'donw': did you mean 'down'?"),
        ("5,n-0,", "failures.csv:2: event: is empty: expected down or up"),
        ("x,n-0,down", "failures.csv:2: time: expected seconds"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_column(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        read_failures(failures(tmp_path, f"time,target,event\n{line}\n"), NODES)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(sentence)
