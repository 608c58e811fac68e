"""Imports go one way, and what lists, plans and prices knows nothing of torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import scalewise

PACKAGE = Path(scalewise.__file__).parent
LAYERS = [
    {"__main__"},
    {"cli"},
    {"experiments"},
    {"verbs"},
    {"linking"},
    {"training", "session"},
    {"engines"},
    {"servers"},
    {"step"},
    {"tracing"},
    {"workloads"},
    {"data"},
    {"figures"},
    {"advice", "validation"},
    {"findings", "measuring", "published"},
    {"prediction"},
    {"simulation"},
    {"strategies"},
    {"plan", "clusters"},
    {"collectives", "results"},
    {"timeline"},
    {"atomic", "spec", "phases"},
    {"errors"},
]
"""From the command line down; a module imports from its own part or from layers below its own."""
WITHOUT_TORCH = [
    "advice", "atomic", "clusters", "collectives", "cli.app", "errors", "experiments.registry", "figures", "findings",
    "measuring", "phases", "plan", "prediction", "published", "results", "simulation", "spec", "strategies", "timeline",
    "validation", "workloads.catalogue",
]  # fmt: skip


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported_by(tree: ast.AST) -> Iterator[str]:
    """Also inside functions; not what only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)
        else:
            yield from imported_by(node)


IMPORTS = {
    module: {target for target in imported_by(ast.parse(path.read_text())) if target in MODULES}
    for module, path in MODULES.items()
}


def test_every_part_has_its_layer() -> None:
    parts = {part_of(module) for module in MODULES} - {""}
    assert parts == set().union(*LAYERS)


def test_no_import_goes_up() -> None:
    height = {part: -number for number, layer in enumerate(LAYERS) for part in layer}
    upward = [
        f"{module} imports {target}"
        for module, targets in IMPORTS.items()
        for target in targets
        if part_of(module) != part_of(target)
        and part_of(target)
        and height.get(part_of(module), -len(LAYERS)) <= height[part_of(target)]
    ]
    assert upward == []


def test_no_import_goes_in_a_circle() -> None:
    TopologicalSorter(IMPORTS).prepare()


def test_the_package_itself_imports_nothing_of_its_own() -> None:
    """So that any module may ask it for the version."""
    assert IMPORTS["scalewise"] == set()


def test_these_import_no_torch() -> None:
    chosen = [
        module
        for module in MODULES
        if any(module == f"scalewise.{name}" or module.startswith(f"scalewise.{name}.") for name in WITHOUT_TORCH)
    ]
    assert {part_of(module) for module in chosen} >= {"strategies", "collectives", "results", "plan", "timeline"}
    script = (
        "import importlib, sys\n"
        f"for module in {chosen!r}:\n"
        "    importlib.import_module(module)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(module + ' imports torch')\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("name", scalewise.__all__)
def test_what_the_package_offers_is_there(name: str) -> None:
    assert getattr(scalewise, name).__name__ == name


def test_what_it_does_not_offer_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'scalewise' has no attribute 'trian'"):
        scalewise.trian  # noqa: B018
