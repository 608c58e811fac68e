"""Order of packages, modules without torch, lengths of files, and no knowledge of strategies outside their files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Set
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import scalewise
from scalewise.strategies.registry import STRATEGIES

PACKAGE = Path(scalewise.__file__).parent
PACKAGES = [
    "__main__",
    "cli",
    "studies",
    "validation",
    "tuning",
    "sweep",
    "advice",
    "probe",
    "training",
    "launch",
    "engines",
    "parameter_server",
    "runtime",
    "models",
    "data",
    "reporting",
    "published",
    "predict",
    "strategies",
    "formats",
    "hardware",
    "core",
]
"""Packages in order: a module imports from its own package and from packages below it."""
UPWARD = {("scalewise.training.train", "scalewise.advice.advise")}
"""Imports against the order: `train --strategy auto` calls `advise`."""
WITHOUT_TORCH = [
    "advice", "cli.app", "core", "formats", "hardware", "launch.placement", "launch.schedulers", "models.catalogue",
    "predict", "published", "reporting", "strategies", "studies.registry", "sweep.drift", "sweep.grid", "sweep.result",
    "sweep.stopping_rule", "training.setup", "tuning.code_lines", "tuning.result", "tuning.search", "validation",
]  # fmt: skip
LONGEST_FILE = 500
SHORTEST_FILE = 50
SHORT_FILES = {
    "scalewise.__main__": "entry point",
    "scalewise.engines.registry": "registry",
    "scalewise.engines.ring": "one strategy",
    "scalewise.hardware.transfers": "imported by every backend's collectives",
    "scalewise.strategies.parameter_server": "one strategy",
    "scalewise.strategies.ring": "one strategy",
    "scalewise.strategies.single": "one strategy",
}
"""Files below SHORTEST_FILE lines and why each is a file of its own."""


STRATEGY_MODULES = {kind.__module__ for kind in STRATEGIES.values()}
MAY_NAME_STRATEGIES = {"strategies", "engines", "studies", "published", "validation"}
"""Packages that may name strategies: studies name those they run, published tables those they used."""
OTHER_MEANINGS = {
    "scalewise.advice.one_device": {"layers"},
    "scalewise.probe.link_benchmarks": {"ring"},
    "scalewise.models.describe": {"layers"},
    "scalewise.models.catalogue": {"layers"},
    "scalewise.models.synthetic": {"layers"},
    "scalewise.models.transformer": {"layers"},
}
"""JSON keys, options of workloads and all-reduce algorithms with the name of a strategy."""


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported_by(tree: ast.AST) -> Iterator[str]:
    """Yield the imported modules, also those imported inside functions, but not those under TYPE_CHECKING."""
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


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules of the package that each of its modules imports."""
    return {
        module: {target for target in imported_by(ast.parse(path.read_text())) if target in MODULES}
        for module, path in MODULES.items()
    }


def test_every_package_is_in_the_order() -> None:
    parts = {part_of(module) for module in MODULES} - {""}
    assert parts == set(PACKAGES)


def test_imports_follow_the_order_of_packages() -> None:
    place = {part: number for number, part in enumerate(PACKAGES)}
    upward = {
        (module, target)
        for module, targets in imports().items()
        for target in targets
        if part_of(module) and part_of(target) and place[part_of(module)] > place[part_of(target)]
    }
    assert upward == UPWARD


def test_files_are_neither_long_nor_tiny() -> None:
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module: count for module, count in lines.items() if count > LONGEST_FILE} == {}
    assert {module for module, count in lines.items() if 0 < count < SHORTEST_FILE} == set(SHORT_FILES)


def test_there_are_at_most_22_packages() -> None:
    assert len(PACKAGES) <= 22


def test_there_are_no_import_cycles() -> None:
    TopologicalSorter(imports()).prepare()


def test_the_top_level_module_imports_no_other_module() -> None:
    """Any module can then import the version from it."""
    assert imports()["scalewise"] == set()


def test_modules_without_torch() -> None:
    chosen = [
        module
        for module in MODULES
        if any(module == f"scalewise.{name}" or module.startswith(f"scalewise.{name}.") for name in WITHOUT_TORCH)
    ]
    assert {part_of(module) for module in chosen} >= {"strategies", "hardware", "formats", "core", "predict"}
    script = (
        "import importlib, sys\n"
        f"for module in {chosen!r}:\n"
        "    importlib.import_module(module)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(module + ' imports torch')\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("name", scalewise.__all__)
def test_names_in_all_can_be_imported(name: str) -> None:
    assert getattr(scalewise, name).__name__ == name


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'scalewise' has no attribute 'trian'"):
        scalewise.trian  # noqa: B018


def strategy_knowledge(source: str, other_meanings: Set[str] = frozenset()) -> list[str]:
    """Return the lines of source code that refer to a concrete strategy: its module, class, name or attributes."""
    tree = ast.parse(source)
    names = set(STRATEGIES) - other_meanings
    variables = strategy_variables(tree)

    def is_strategy(node: ast.expr) -> bool:
        last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        return last in variables or last.endswith("_strategy")

    def is_name(node: ast.expr | None) -> bool:
        return isinstance(node, ast.Constant) and node.value in names

    def is_its_name(node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "name" and is_strategy(node.value)

    def knows(node: ast.AST) -> bool:
        match node:
            case ast.ImportFrom() | ast.Import():
                return bool({*imported_from(node)} & STRATEGY_MODULES)
            case ast.Call(func=ast.Name("isinstance"), args=[_, ast.Name("str")]):
                return False  # distinguishes a name from an object
            case ast.Call(func=ast.Name("isinstance" | "hasattr" | "getattr"), args=[first, *_]):
                return is_strategy(first) or any(map(is_name, node.args))
            case ast.Call():
                return any(map(is_name, node.args))
            case ast.Compare():
                return any(is_name(side) or is_its_name(side) for side in (node.left, *node.comparators))
            case ast.List() | ast.Tuple() | ast.Set():
                return any(map(is_name, node.elts))
            case ast.Dict():
                return any(map(is_name, node.keys))
            case ast.Subscript():
                return is_name(node.slice)
            case ast.MatchValue():
                return is_name(node.value)
        return False

    return [f"line {node.lineno}: {ast.unparse(node)}" for node in ast.walk(tree) if knows(node)]  # type: ignore[attr-defined]


def strategy_variables(tree: ast.AST) -> set[str]:
    """Return the names of variables that hold a strategy: 'strategy', annotated arguments and assigned variables."""
    variables = {"strategy"}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation and re.search(r"\bStrategy\b", ast.unparse(node.annotation)):
            variables.add(node.arg)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = zip(target.elts, node.value.elts, strict=False) if both else [(target, node.value)]  # type: ignore[attr-defined]
                variables |= {ast.unparse(name) for name, value in pairs if ast.unparse(value).endswith(".strategy")}
    return variables


def imported_from(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        yield str(node.module)
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    else:
        yield from (alias.name for alias in node.names)


def test_only_strategies_and_engines_refer_to_a_strategy() -> None:
    lines_of_module = {
        module: lines
        for module, path in MODULES.items()
        if part_of(module) not in MAY_NAME_STRATEGIES
        and (lines := strategy_knowledge(path.read_text(), OTHER_MEANINGS.get(module, frozenset())))
    }
    assert lines_of_module == {}


@pytest.mark.parametrize(
    "source",
    [
        "from scalewise.strategies.pipeline import Pipeline",
        "from scalewise.strategies import pipeline",
        "import scalewise.strategies.central_storage as central",
        "def f():\n    from scalewise.strategies.mirrored import LARGE_BUCKET_MB",
        "isinstance(strategy, Kind)",
        "isinstance(request.strategy, (Kind, Other))",
        "def f(one: Strategy | None): return isinstance(one, Kind)",
        "hasattr(strategy, 'microbatches')",
        "getattr(self.strategy, 'compress', '')",
        "strategy.name == other",
        "if other != row.prediction.strategy.name: pass",
        "def f(own: Strategy, name: str): return name == own.name",
        "own, other = self.request.strategy, 1\nown.name == name",
        "text == 'pipeline'",
        "'sharded' in texts",
        "text in ('x', 'data-parallel')",
        "FOR_LARGE_MODELS = ['central-storage']",
        "PARTS: set[str] = {'tensor', 'x'}",
        "HOLDINGS = {'single': held}",
        "STRATEGIES['ring']",
        "strategy_of('mirrored')",
        "match text:\n    case 'hybrid' | 'layers': pass",
    ],
)
def test_references_to_a_strategy_are_found(source: str) -> None:
    assert strategy_knowledge(source)


@pytest.mark.parametrize(
    "source",
    [
        "from scalewise.strategies.base import Strategy",
        "from scalewise.strategies.registry import REFERENCE, STRATEGIES",
        "strategy.for_large_models and strategy.servers > 1",
        "[own if kind is type(own) else kind() for kind in STRATEGIES.values()]",
        "names = [strategy.name for strategy in strategies]",
        "def f(strategy: str = 'single') -> None: print(f'use {strategy}')",
        "spec.name == 'hf'",
        "isinstance(model, DistributedDataParallel)",
        "COLUMNS = ('strategy', 'devices')",
        "def f(strategy: Strategy | str): return isinstance(strategy, str)",
        "def f(remedy: UseStrategy | None): return isinstance(remedy, UseStrategy)",
    ],
)
def test_use_of_the_strategy_interface_is_allowed(source: str) -> None:
    assert strategy_knowledge(source) == []


def test_names_with_another_meaning_are_allowed() -> None:
    assert strategy_knowledge("{'layers': []}", {"layers"}) == []
    assert strategy_knowledge("{'layers': [], 'ring': 1}", {"layers"})
