"""Write the document of a page as one self-contained HTML file.

The file contains the libraries, style, script and data, and its content security policy forbids it to load or send
anything. What a reader without JavaScript needs (verdict, findings, environment) is HTML; charts and the table are
drawn from the data by the scripts in the folder `page`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewise.core.files import write_atomically
from scalewise.core.units import Printable

if TYPE_CHECKING:
    from scalewise.reporting.page_json import Page

FILE_NAME = "report.html"
LIBRARIES = ("d3.min.js", "plot.min.js")
SCRIPTS = ("model.js", "charts.js", "bars.js", "step.js", "table.js", "page.js")
LICENCES = ("d3.LICENSE", "plot.LICENSE")
IN_NOTEBOOK = "height:46rem;width:100%;border:1px solid #d5dbe1;border-radius:8px"
UNPACK = """<!DOCTYPE html><script>
(async () => {
  const packed = Uint8Array.from(atob("%s"), (character) => character.charCodeAt(0));
  const text = new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.open();
  document.write(await text);
  document.close();
})();
</script>"""
"""Document that replaces itself with the compressed one in it."""
IMAGE_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}

SECTIONS = (
    ("comparison", "Comparison of clusters", "Clusters", "Time and cost of the fastest strategy on every cluster."),
    ("tuning", "Tuning of one device", "Tuning", "Ways to run the step of one device; the first is plain eager mode."),
    (
        "speedup",
        "Speed-up over devices",
        "Speed-up",
        "Points and solid lines are measured, dashed lines are predicted; bars and shades are their intervals (95% "
        "measured, 90% predicted). Click a name to hide or show its line, drag over a chart to zoom, click a point to "
        "see its step.",
    ),
    ("epochs", "Epoch time over batch size", "Epoch time", ""),
    (
        "phases",
        "Where a step's time goes",
        "Phases",
        "Seconds of a step in every phase; phases do not overlap, so they add up to the step. Click a name to see its "
        "timeline.",
    ),
    (
        "timeline",
        "Timeline of devices and links",
        "Timeline",
        "When every device computes and every link carries data during one step, measured above predicted.",
    ),
    (
        "topology",
        "Devices and links",
        "Devices and links",
        "Which devices share a link, and how busy it is in the step above.",
    ),
    ("memory", "Memory per device", "Memory", "Peak memory of a device against its capacity."),
    ("cells", "All cells", "Table", "Every combination of strategy, devices and batch. The headings sort the table."),
)
"""Sections that scripts fill: identifier, heading, link in the menu, and an introduction."""


class PagedResult(Printable):
    """Base class of results that a notebook shows as a page, and that `--report FILE` writes as one."""

    @abstractmethod
    def page(self) -> Page:
        """Return the document of the page."""

    def write_report(self, path: Path | str) -> None:
        """Write the page: one HTML file that needs no network."""
        write_page(Path(path), self.page())

    def _repr_html_(self) -> str:
        return notebook_html(self.page(), str(self))


def write_page(path: Path, page: Page, figures: Sequence[Path] = ()) -> Path:
    """Write the page atomically; return the path. `figures`: image files to embed."""
    write_atomically(path, html_of(page, figures).encode())
    return path


def notebook_html(page: Page, text: str) -> str:
    """Return the page as an `<iframe>` for the output of a notebook, with the text of the result below it.

    The page is compressed to about 300 KB, so that a notebook with several results stays small; the browser unpacks it.
    """
    packed = base64.b64encode(gzip.compress(html_of(page).encode(), mtime=0)).decode()
    frame = (
        f'<iframe title="{escape(page["title"])}" style="{IN_NOTEBOOK}" srcdoc="{escape(UNPACK % packed)}"></iframe>'
    )
    return f"{frame}<details><summary>Text</summary><pre>{escape(text)}</pre></details>"


def html_of(page: Page, figures: Sequence[Path] = ()) -> str:
    """Return the page as HTML."""
    scripts = [_asset(name) for name in LIBRARIES]
    scripts.append("\n".join(_asset(name).replace('"use strict";\n', "") for name in SCRIPTS))
    scripts[-1] = '"use strict";\n' + scripts[-1]
    return "".join(_parts(page, scripts, figures))


def json_in_html(document: Any) -> str:
    """Return JSON that can stand in a `<script>`: no `<` or `&`, no line separators of JavaScript."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _parts(page: Page, scripts: Sequence[str], figures: Sequence[Path]) -> Iterable[str]:
    title = escape(page["title"])
    yield "<!DOCTYPE html>\n"
    yield '<html lang="en" data-theme="light">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f'<meta name="generator" content="Scalewise {escape(page["version"])}">\n'
    yield f"<title>{title}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
    yield '<a class="skip" href="#main">Skip to the content</a>\n<header><div class="inside">'
    yield f'<span class="brand">Scalewise</span><h1>{title}</h1>'
    yield f'<span class="about">{escape(page["created"])}, version {escape(page["version"])}</span>'
    yield '<button id="theme" class="theme" type="button" hidden>Dark theme</button></div></header>\n'
    yield _menu(page, figures)
    yield '<main id="main">\n'
    yield _verdict(page)
    yield "<noscript><p>The charts and the table need JavaScript.</p></noscript>\n"
    if "cells" in page:
        yield '<div id="filter" class="controls"></div>\n'
    for name, heading, _, introduction in SECTIONS:
        if _is_filled(page, name):
            about = f" The sections below are about {escape(page['cluster'])}." if name == "comparison" else ""
            yield _section(name, heading, f'<p class="lead">{introduction}{about}</p>' if introduction else "")
    yield _findings(page)
    yield _figures(figures)
    yield _environment(page)
    yield "</main>\n<footer><details><summary>Licences of the embedded libraries</summary>"
    yield "".join(f"<pre>{escape(name)}\n{escape(_asset(name))}</pre>" for name in LICENCES)
    yield "</details></footer>\n"
    yield f'<script type="application/json" id="data">{json_in_html(page)}</script>\n'
    yield from (f"<script>{script}</script>\n" for script in scripts)
    yield "</body>\n</html>\n"


def _is_filled(page: Page, name: str) -> bool:
    return name in page if name in ("comparison", "tuning", "cells") else "cells" in page


def _policy(scripts: Sequence[str]) -> str:
    """Content security policy: only these scripts run, and nothing is loaded from or sent to anywhere."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


@cache
def _asset(name: str) -> str:
    return files("scalewise.reporting").joinpath(f"page/{name}").read_text(encoding="utf-8")


def _menu(page: Page, figures: Sequence[Path]) -> str:
    links = [(name, link) for name, _, link, _ in SECTIONS if _is_filled(page, name)]
    links += [("findings", "Findings")] if _has_findings(page) else []
    links += [("figures", "Figures")] if figures else []
    links += [("environment", "Environment")] if page.get("environments") else []
    items = "".join(f'<li><a href="#{name}">{link}</a></li>' for name, link in links)
    return f'<nav aria-label="Sections"><ul>{items}</ul></nav>\n'


def _section(name: str, heading: str, content: str) -> str:
    body = f'{content}<div class="body"></div>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{_heading(name, heading)}{body}</section>\n'


def _heading(name: str, text: str) -> str:
    return f'<h2 id="{name}-title" tabindex="-1">{text}</h2>'


def _verdict(page: Page) -> str:
    verdict = page.get("verdict", {"sentence": "No result.", "tone": "open"})
    number = ""
    if figure := verdict.get("figure"):
        caption = f'<div class="caption">{escape(verdict["caption"])}</div>'
        number = f'<div><div class="number">{escape(figure)}</div>{caption}</div>'
    box = f'<div class="verdict {verdict["tone"]}{"" if number else " plain"}">{number}'
    more = f'<p class="more">{escape(verdict["more"])}</p>' if verdict.get("more") else ""
    words = f'<div><p class="sentence">{escape(verdict["sentence"])}</p>{more}</div>'
    return f'<section id="verdict" aria-label="Verdict">{box}{words}</div>{_facts(page)}</section>\n'


def _facts(page: Page) -> str:
    facts = []
    if rows := page.get("cells", {}).get("rows"):
        facts.append(f"<b>{len(rows):,}</b> cell{'s' if len(rows) != 1 else ''}")
    if accuracy := page.get("accuracy"):
        error = f"<b>{accuracy['median_error_percent']:.1f}%</b> median error of predicted epochs"
        facts.append(f"{error} (<b>{accuracy['inside']}</b> of {accuracy['cells']} inside the 90% interval)")
    facts += [escape(environment["machine"]) for environment in page.get("environments", [])][:3]
    return f'<ul class="facts">{"".join(f"<li>{fact}</li>" for fact in facts)}</ul>'


def _has_findings(page: Page) -> bool:
    return any(page.get(name) for name in ("findings", "changes", "limitations", "result_table"))


def _findings(page: Page) -> str:
    if not _has_findings(page):
        return ""
    parts = [_heading("findings", "Findings")]
    if table := page.get("result_table"):
        head = "".join(f'<th scope="col">{escape(str(text))}</th>' for text in table["columns"])
        rows = "".join(f"<tr>{''.join(f'<td>{escape(str(text))}</td>' for text in row)}</tr>" for row in table["rows"])
        scroll = '<div class="scroll" tabindex="0" role="region" aria-label="Result">'
        parts.append(f"{scroll}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>")
    by_subject: dict[str, list[str]] = {}
    for finding in page.get("findings", []):
        by_subject.setdefault(finding["about"], []).append(finding["text"])
    for subject, texts in by_subject.items():
        parts += [f"<h3>{escape(subject)}</h3>" if subject else "", _listing(texts, _workloads(page))]
    if changes := page.get("changes"):
        parts += ["<h3>What else you could change</h3>", _listing(map(_change_text, changes))]
    if limitations := page.get("limitations"):
        parts += ["<h3>Limitations</h3>", _listing(limitations)]
    return f'<section id="findings" aria-labelledby="findings-title">{"".join(parts)}</section>\n'


def _workloads(page: Page) -> list[str]:
    table = page.get("cells", {"columns": [], "rows": []})
    return sorted({row[table["columns"].index("workload")] for row in table["rows"]})


def _change_text(change: Mapping[str, Any]) -> str:
    speedup = change["speedup"]
    return f"{change['text']}{'' if speedup is None else f': {speedup:.2f}x over one device'}"


def _listing(texts: Iterable[str], names: Sequence[str] = ()) -> str:
    """Return a list. A text begins with a capital letter, unless it begins with one of `names`."""
    sentences = (text if text.startswith(tuple(names)) else text[:1].upper() + text[1:] for text in texts)
    return f'<ul class="findings">{"".join(f"<li>{escape(text)}</li>" for text in sentences)}</ul>'


def _figures(figures: Sequence[Path]) -> str:
    """Embed images; of a figure that exists in several formats, the first."""
    by_name = {path.stem: path for path in reversed(figures) if path.suffix in IMAGE_TYPES}
    if not by_name:
        return ""
    images = (
        f'<figure class="card"><img alt="{escape(name.replace("-", " "))}" '
        f'src="data:{IMAGE_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"></figure>'
        for name, path in reversed(by_name.items())
    )
    content = f'{_heading("figures", "Figures")}<div class="figures">{"".join(images)}</div>'
    return f'<section id="figures" aria-labelledby="figures-title">{content}</section>\n'


def _environment(page: Page) -> str:
    environments, notes = page.get("environments", []), page.get("notes", [])
    if not environments and not notes:
        return ""
    parts = [_heading("environment", "Environment")]
    for environment in environments:
        entries = "".join(
            f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in environment["entries"].items()
        )
        parts.append(f"<h3>{escape(environment['machine'])}</h3><dl>{entries}</dl>")
    if notes:
        parts.append(f"<h3>{page.get('notes_heading', 'Origin of the predictions')}</h3>{_listing(notes)}")
    return f'<section id="environment" aria-labelledby="environment-title">{"".join(parts)}</section>\n'
