"""What the documentation site adds to the pages of this folder: a hook of MkDocs, see mkdocs.yml.

The README is its home; the pages for contributors lie elsewhere in the repository. Links to files
that are no pages, such as sources, become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

ELSEWHERE = {
    "index.md": "README.md",
    "index.zh-CN.md": "README.zh-CN.md",
    "contributing.md": "CONTRIBUTING.md",
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "benchmarks.md": "benchmarks/README.md",
}
"""Page of the site -> its file in the repository."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)]*)?\)")
_RUN = re.compile(r"^```(\w+) run$", re.MULTILINE)  # examples that the tests run
_SOURCE = re.compile(r'((?:src|srcset)=")([^"]+)(")')


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie outside of this folder."""
    for page, source in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns paths within the repository into addresses within the site."""
    del config
    here = page.file.src_uri
    source = ELSEWHERE.get(here, f"docs/{here}")
    known = {ELSEWHERE.get(one, f"docs/{one}"): one for one in files.src_uris}

    def target(path: str) -> str | None:
        found = known.get(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        return None if found is None else posixpath.relpath(found, posixpath.dirname(here) or ".")

    def link(match: re.Match[str]) -> str:
        mark, words, path, anchor = match[1], match[2], match[3], match[4] or ""
        if "://" in path:
            return match[0]
        found = target(path)
        return words if found is None else f"{mark}[{words}]({found}{anchor})"

    def picture(match: re.Match[str]) -> str:
        # In HTML, which MkDocs leaves as it is: each page has a folder of its own.
        found = target(match[2]) or match[2]
        up = "" if here == "index.md" else "../"
        return f"{match[1]}{up}{found}{match[3]}"

    markdown = _RUN.sub(r"```\1", markdown)
    return _SOURCE.sub(picture, _LINK.sub(link, markdown))
