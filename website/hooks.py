"""Hooks of MkDocs: pages of the site that are generated from the repository, its navigation and its links.

The Markdown files are written for a code host, so links may lead to files outside `docs/`. In the site README.md is the
home page, CONTRIBUTING.md and CHANGELOG.md are pages, every example is a page with its code, and the references of the
command line and of the Python functions are generated from the code.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import scalewise

ROOT = Path(__file__).resolve().parents[1]
PAGE_OF_FILE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Site pages of files that are not in docs/."""
STYLES = """
.md-grid { max-width: 82rem; }
.md-typeset table:not([class]), .md-typeset table.dataframe { font-size: 0.66rem; }
.md-typeset table:not([class]) :is(th, td) { min-width: 0; padding: 0.6em 0.8em; }
.md-typeset td:first-child code { white-space: nowrap; }
.md-typeset td .word { white-space: nowrap; }
.md-typeset table.dataframe { border: 0; border-collapse: collapse; }
.md-typeset table.dataframe :is(th, td) { border: 0; padding: 0.2em 0.8em; text-align: right; }
.md-typeset .output { overflow-x: auto; }
.md-typeset .output pre { font-size: 0.6rem; line-height: 1.3; }
.md-typeset img[src$=".svg"] { background: #fff; border-radius: 4px; }
"""
RECORD = re.compile(r"decisions/\d{4}-")
"""Pages that are reached from the index of their folder, not from the navigation."""
CODE = re.compile(r"<code>([^<]*-[^<]*)</code>")
"""Code with a hyphen, at which a line could break."""
LINK = re.compile(r"(?<=\]\()([^()\s#]+)(#[^()\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation: expand folders, leave out pages that do not exist, add pages that are not listed."""
    pages = sorted(_site_pages())
    listed: set[str] = set()
    config.nav = _expanded(config.nav or [], pages, listed)
    if rest := [page for page in pages if page not in listed and not RECORD.match(page)]:
        config.nav.append({"More": rest})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/."""
    for source, page in PAGE_OF_FILE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in _examples():
        text = path.read_text(encoding="utf-8")
        page = notebook_page(text) if path.suffix == ".ipynb" else f"# {path.name}\n\n```python\n{text}```\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=page))
    files.append(File.generated(config, "reference/cli.md", content=command_line_reference()))
    files.append(File.generated(config, "reference/api.md", content=python_reference()))
    files.append(File.generated(config, "stylesheets/extra.css", content=STYLES))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to files outside docs/ to their pages in the site."""
    site_path = page.file.src_uri
    source = next((name for name, target in PAGE_OF_FILE.items() if target == site_path), f"docs/{site_path}")
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda link: _site_link(link, source, site_path), part)
        for part in re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    )


def on_page_content(html: str, **_: Any) -> str:
    """Break code in tables between words only, not inside an option such as --strategy."""
    return re.sub(r"<td\b.*?</td>", lambda cell: CODE.sub(_unbroken, cell[0]), html, flags=re.DOTALL)


def _unbroken(code: re.Match[str]) -> str:
    return "<code>" + " ".join(f'<span class="word">{word}</span>' for word in code[1].split(" ")) + "</code>"


def command_line_reference() -> str:
    """Return the reference of all commands, written by typer."""
    command = [sys.executable, "-m", "typer", "scalewise.cli.app", "utils", "docs", "--name", "scalewise"]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    head, *commands = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    usage = head[head.index("**Usage**") : head.index("**Commands**")]
    title = "# Command line\n\nGenerated from the commands; `scalewise COMMAND --help` prints the same.\n\n"
    return title + usage + "".join(map(_with_example_block, commands))


def python_reference() -> str:
    """Return the page from which mkdocstrings writes the reference of the functions in `scalewise`."""
    names = sorted(scalewise.__all__, key=lambda name: (name[0].isupper(), name))  # functions, then classes
    paths = [*(f"scalewise.{name}" for name in names), "scalewise.core.training_options.TrainingOptions"]
    title = "# Python\n\nGenerated from the code; `help(scalewise.train)` prints the same.\n\n"
    return title + "\n\n".join(f"::: {path}" for path in paths) + "\n"


def _with_example_block(command: str) -> str:
    """Set the examples of a command as code."""
    text, separator, examples = command.partition("Example")
    calls = re.findall(r"^(?:s?: )?(scalewise .*)$", examples, flags=re.MULTILINE)
    if not separator or not calls:
        return command
    return f"{text}**Examples**:\n\n```console\n" + "".join(f"$ {call}\n" for call in calls) + "```\n\n"


def notebook_page(text: str) -> str:
    """Return the page of an executed notebook: its text, code, tables and figures."""
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = {kind: "".join(content) for kind, content in output.get("data", {}).items()}
            if image := data.get("image/png"):
                parts.append(f'<img alt="figure" src="data:image/png;base64,{image.strip()}">')
            elif html := data.get("text/html"):
                html = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
                html = re.sub(r"\n[ \t]*\n", "\n&nbsp;\n", html)  # an empty line would end the block
                parts.append(f'<div class="output">{html}</div>')
            else:
                shown = data.get("text/plain") or "".join(output.get("text", ""))
                parts.append(f"```text\n{shown}\n```")
    return "\n\n".join(parts) + "\n"


def _examples() -> list[Path]:
    return sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb"))


def _site_pages() -> set[str]:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    examples = {f"examples/{path.stem}.md" for path in _examples()}
    return pages | examples | set(PAGE_OF_FILE.values()) | {"reference/cli.md", "reference/api.md"}


def _expanded(entries: list[Any], pages: list[str], listed: set[str]) -> list[Any]:
    """Return navigation entries without missing pages, with the pages of each folder, its README.md first."""
    complete: list[Any] = []
    for entry in entries:
        ((title, target),) = entry.items()
        if isinstance(target, str) and target.endswith("/"):
            inside = [page for page in pages if page.startswith(target) and not RECORD.match(page)]
            target = sorted(inside, key=lambda page: not page.endswith("/README.md"))
            listed.update(target)
        elif isinstance(target, list):
            target = _expanded(target, pages, listed)
        elif target in pages:
            listed.add(target)
        else:
            continue
        complete.append({title: target})
    return complete


def _site_link(link: re.Match[str], source: str, site_path: str) -> str:
    """Return the link of a page, relative to its place in the site."""
    target, anchor = link[1], link[2] or ""
    if ":" in target:
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in PAGE_OF_FILE:
        page = PAGE_OF_FILE[path]
    elif path.startswith("examples/") and path.endswith((".py", ".ipynb")):
        page = f"{path.rpartition('.')[0]}.md"
    elif path.startswith("docs/") and (ROOT / path).is_dir():
        page = f"{path.removeprefix('docs/')}/README.md"
    else:
        page = path.removeprefix("docs/")
    return posixpath.relpath(page, posixpath.dirname(site_path) or ".") + anchor
