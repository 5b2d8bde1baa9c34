"""Tables: whole in a pipe, cut and thinned out on a narrow terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from emep.cli.table import cell, fit, plain_lines, printable

NAMES = ["JOB", ">GPUS", "USER", "WHY"]
CELLS = [["a", "8", "alice", "waits for a group of 8"], ["longer", "16", "bob", "-"]]


def test_a_table_in_a_pipe_is_aligned_and_whole() -> None:
    assert plain_lines(NAMES, CELLS) == [
        "JOB     GPUS  USER   WHY",
        "a          8  alice  waits for a group of 8",
        "longer    16  bob    -",
    ]


def test_what_is_not_there_is_a_dash() -> None:
    assert [cell(value) for value in (None, "", 0, 2.0, 0.5, "x")] == ["-", "-", "0", "2", "0.5", "x"]


def test_what_a_name_could_do_to_the_terminal_is_written_out() -> None:
    assert cell("\x1b[2J\x1b[31mred\nnext\r") == r"\x1b[2J\x1b[31mred\nnext\r"
    assert printable("\u202egnp.exe") == r"\u202egnp.exe"
    assert printable("größe 大") == "größe 大"


def test_optional_columns_go_when_the_terminal_is_narrow_the_first_named_first() -> None:
    assert fit(NAMES, CELLS, 80, ["USER", ">GPUS"])[0] == NAMES
    assert fit(NAMES, CELLS, 40, ["USER", ">GPUS"])[0] == ["JOB", ">GPUS", "WHY"]
    assert fit(NAMES, CELLS, 10, ["USER", ">GPUS"])[0] == ["JOB", "WHY"]


def test_on_a_terminal_no_line_is_wider_than_it() -> None:
    program = (
        "from emep.cli.table import print_table\n"
        "rows = [['job', 8, 'alice', 'waits ' * 30], ['other', 1, 'bob', '']]\n"
        f"print_table({NAMES}, rows, optional=['USER'])"
    )
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=slave, env={**environment, "NO_COLOR": "1", "TERM": "dumb"}
    ) as process:
        os.close(slave)
        output = b""
        try:
            while chunk := os.read(master, 4096):
                output += chunk
        except OSError:  # the terminal's other end is closed
            pass
        assert process.wait(30) == 0
    os.close(master)
    lines = output.decode().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 50
    assert lines[1].rstrip().endswith("…")
