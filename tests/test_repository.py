"""What the repository promises about itself: lock, links, commands."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOCKS = [ROOT / "requirements.lock", ROOT / "requirements" / "uv.txt"]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "docker" / "README.md",
]


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


def _code(document: Path) -> list[str]:
    """What the document prints as code within its sentences."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", document.read_text())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_the_documents_name_are_there(document: Path) -> None:
    inside = re.compile(r"(?:plugins|include|tests|dags|docs|docker|requirements)/[\w./-]*(?:::\w+)?")
    named = [text.split("::")[0] for text in _code(document) if inside.fullmatch(text)]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_that_the_documents_name_are_there(document: Path) -> None:
    words = [text.removeprefix("python -m ").split(" ")[0] for text in _code(document)]
    named = [word for word in words if re.fullmatch(r"(?:emep|engines|tests)(?:\.\w+)+", word)]
    assert [name for name in named if name not in NO_MODULES and not _is_defined(name)] == []


NO_MODULES = {"emep.audit", "emep.kubeconfig", "engines.Dockerfile"}
"""A logger and files whose names look like a module's."""


def _is_defined(name: str) -> bool:
    """Whether the name is a package's or a module's, or stands in the module that its beginning names."""
    parts = name.split(".")
    place = ROOT / {"emep": "plugins", "engines": "include", "tests": ""}[parts[0]]
    for count in range(len(parts), 0, -1):
        path = place.joinpath(*parts[:count])
        if path.is_dir() and count == len(parts):
            return True
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            text = file.read_text()
            return all(re.search(rf"\b{part}\b", text) for part in parts[count:])
    return False


@pytest.mark.parametrize("room", ["emep", "emep.ledger"])
def test_the_floor_plan_is_the_contract_that_lint_checks(room: str) -> None:
    rows = re.findall(r"^\| \d+ \| ([^|]+) \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    plan = [frozenset(re.findall(rf"`{room}\.(\w+)`", row)) for row in rows]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [one["layers"] for one in contracts if one.get("containers") == [room]]
    assert [floor for floor in plan if floor] == [frozenset(floor.split(" | ")) for floor in layers]


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
