"""What the repository promises about itself: lock, links, commands."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOCKS = [ROOT / "requirements.lock", ROOT / "requirements" / "uv.txt"]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "docker" / "README.md"]


def _requirements(lock: Path) -> dict[str, str]:
    """Each requirement of a lock by its normalised name, with the lines that belong to it."""
    logical = lock.read_text().replace("\\\n", " ").splitlines()
    found = {}
    for line in logical:
        if match := re.match(r"([A-Za-z0-9._-]+)==", line):
            found[_normal(match[1])] = line
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_hashes_and_no_address(lock: Path) -> None:
    requirements = _requirements(lock)
    assert requirements
    for name, line in requirements.items():
        assert "--hash=sha256:" in line, name
    assert "://" not in lock.read_text()


def test_the_lock_holds_every_package_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        named.extend(extra)
    locked = _requirements(ROOT / "requirements.lock")
    missing = [
        entry
        for entry in named
        if _normal(re.match(r"[A-Za-z0-9._-]+", entry)[0]) not in locked  # type: ignore[index]
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pictures_of_the_documents_lead_to_files(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target and not (document.parent / target).exists():
            broken.append(target)
    assert broken == []


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = {line.split()[1] for line in shown.splitlines() if line.strip().startswith("make ")}
    assert listed == targets


def test_ci_runs_what_the_readme_tells_users_to_run() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    for target in ("make test", "make lint", "make types"):
        assert target in script
