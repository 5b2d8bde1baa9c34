"""Measures how easy the source is to enter, and fails where a figure passes its limit.

Run by ``make lint``: ``python -m tests.house``. Each figure names its worst place, so that a failure says
where to look. A limit is where the code stands: it is lowered whenever the code has become better, and never
raised. A goal is where it is to go.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [ROOT / "plugins" / "emep", ROOT / "include" / "engines"]
PACKAGES = {"emep": ROOT / "plugins", "engines": ROOT / "include"}
PRONOUNS = re.compile(r"\b(nobody|somebody|whoever|anybody|whomever)\b", re.IGNORECASE)
SHORTEST_DOCSTRING = 20
"""A package docstring of fewer characters ("EMEP.") says nothing."""


@dataclass(frozen=True)
class Figure:
    """One measurement: ``value`` may be at most ``limit``; ``where`` names what it was measured at."""

    name: str
    value: int
    limit: int
    where: str

    @property
    def goal(self) -> int:
        """What the value is to come down to."""
        return GOALS.get(self.name, self.limit)

    @property
    def is_kept(self) -> bool:
        """Whether the value is within its limit."""
        return self.value <= self.limit


def main() -> int:
    """Print every figure; 1 where one passes its limit."""
    figures = list(measure())
    for figure in figures:
        mark = "ok  " if figure.is_kept else "OVER"
        limits = f"{figure.value:>4} of {figure.limit:<4} (goal {figure.goal})"
        print(f"{mark} {figure.name:42} {limits} {figure.where}")
    return 0 if all(figure.is_kept for figure in figures) else 1


def measure() -> Iterator[Figure]:
    """Every figure of the source."""
    files = [path for source in SOURCES for path in sorted(source.rglob("*.py"))]
    trees = {path: ast.parse(path.read_text()) for path in files}
    chain, circles = import_structure()
    largest = max(circles, key=len, default=())
    where = " > ".join(chain[:3]) + " > ..."
    yield Figure("longest chain of imports, steps", len(chain) - 1, LIMITS["chain"], where)
    where = ", ".join(sorted(largest)[:4])
    yield Figure("largest circle of imports, modules", len(largest), LIMITS["circle"], where)
    yield _fullest_folder(files)
    yield _longest_module(files)
    yield _most_bases(trees)
    yield _most_arguments(trees)
    yield _pronouns(files)
    yield _silent_packages(trees)


LIMITS = {
    "chain": 18,
    "circle": 3,
    "folder": 18,
    "module": 400,
    "bases": 4,
    "arguments": 20,
    "pronouns": 0,
    "silent packages": 0,
}
GOALS = {
    "longest chain of imports, steps": 18,
    "largest circle of imports, modules": 3,
    "fullest folder, modules": 18,
    "most bases of a class": 4,
    "most arguments of a function": 20,
    "nobody, somebody, whoever, anybody": 12,
    "packages whose docstring says nothing": 0,
}
"""By a figure's name; the others are at their goal."""


# ---- imports -----------------------------------------------------------------------------------------------


def import_structure() -> tuple[list[str], list[frozenset[str]]]:
    """The longest chain of modules of which each imports the next, inside functions too, and all circles.

    A circle counts as one module, since its size has a limit of its own. Imports for type checkers alone do
    not count.
    """
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    components = _components(imports)
    of = {module: component for component in components for module in component}
    best: dict[frozenset[str], list[str]] = {}
    for component in components:  # each comes after all that it imports
        further = [best[of[n]] for m in component for n in imports[m] if of[n] is not component]
        best[component] = [" + ".join(sorted(component)), *max(further, key=len, default=[])]
    circles = [component for component in components if len(component) > 1]
    return max(best.values(), key=len), circles


def _components(imports: dict[str, set[str]]) -> list[frozenset[str]]:
    """Strongly connected components, importers after what they import (Tarjan 1972, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_modules: list[str] = []
    is_open: set[str] = set()
    found: list[frozenset[str]] = []
    for root in sorted(imports):
        if root in index:
            continue
        work = [(root, iter(sorted(imports[root])))]
        index[root] = low[root] = len(index)
        open_modules.append(root)
        is_open.add(root)
        while work:
            module, rest = work[-1]
            following = next((n for n in rest if n not in index or n in is_open), None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == index[module]:
                    cut = open_modules.index(module)
                    found.append(frozenset(open_modules[cut:]))
                    is_open.difference_update(open_modules[cut:])
                    del open_modules[cut:]
            elif following in index:
                low[module] = min(low[module], index[following])
            else:
                index[following] = low[following] = len(index)
                open_modules.append(following)
                is_open.add(following)
                work.append((following, iter(sorted(imports[following]))))
    return found


# ---- files and definitions ---------------------------------------------------------------------------------


def _fullest_folder(files: list[Path]) -> Figure:
    counts = Counter(path.parent for path in files if path.name != "__init__.py")
    folder, count = counts.most_common(1)[0]
    return Figure("fullest folder, modules", count, LIMITS["folder"], _place(folder))


def _longest_module(files: list[Path]) -> Figure:
    longest = max(files, key=_lines)
    return Figure("longest module, lines", _lines(longest), LIMITS["module"], _place(longest))


def _most_bases(trees: dict[Path, ast.Module]) -> Figure:
    classes = [(len(node.bases), path, node) for path, node in _nodes(trees, ast.ClassDef)]
    count, path, node = max(classes, key=lambda entry: entry[0])
    return Figure(
        "most bases of a class", count, LIMITS["bases"], f"{_place(path)}:{node.lineno} {node.name}"
    )


def _most_arguments(trees: dict[Path, ast.Module]) -> Figure:
    functions = [
        (len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs), path, node)
        for path, node in _nodes(trees, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    count, path, node = max(functions, key=lambda entry: entry[0])
    where = f"{_place(path)}:{node.lineno} {node.name}"
    return Figure("most arguments of a function", count, LIMITS["arguments"], where)


def _pronouns(files: list[Path]) -> Figure:
    counts = Counter({path: len(PRONOUNS.findall(path.read_text())) for path in files})
    total = sum(counts.values())
    return Figure(
        "nobody, somebody, whoever, anybody", total, LIMITS["pronouns"], _place(counts.most_common(1)[0][0])
    )


def _silent_packages(trees: dict[Path, ast.Module]) -> Figure:
    silent = [
        path
        for path, tree in trees.items()
        if path.name == "__init__.py" and len(ast.get_docstring(tree) or "") < SHORTEST_DOCSTRING
    ]
    return Figure(
        "packages whose docstring says nothing",
        len(silent),
        LIMITS["silent packages"],
        ", ".join(_place(path.parent) for path in silent[:3]),
    )


def _nodes(trees: dict[Path, ast.Module], kind) -> Iterator[tuple[Path, ast.AST]]:  # type: ignore[no-untyped-def]
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield path, node


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def _place(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
