"""Every relative link and picture in the documentation leads to a file of the checkout, and to a heading of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("*.md", "docs/**/*.md", "harness/**/*.md", "kernels/**/*.md", "results/*.md", "results/baselines/**/*.md")
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def targets(text):
    """Where ``[text](target)`` and ``![text](target)`` lead; addresses of the web are left out."""
    found = re.findall(r"\]\(([^()\s]+)\)", without_code(text))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text):
    """What a heading is called in an address: lower case, hyphens for blanks, other punctuation gone."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead(page):
    """Targets of a page that lead nowhere."""
    found = []
    for target in targets(page.read_text()):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        leaves = not file.is_relative_to(ROOT) or not file.exists()
        if leaves or (anchor and anchor not in anchors(file.read_text())):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    assert dead(page) == []


def test_the_pages_are_found_and_have_links():
    assert {"README.md", "docs/configs.md", "results/README.md"} <= {str(page.relative_to(ROOT)) for page in PAGES}
    assert sum(len(targets(page.read_text())) for page in PAGES) > 20


def test_a_link_to_no_file_or_no_heading_is_seen(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A `heading`, here\n[a](page.md#a-heading-here) [b](#nowhere) [c](other.md) [d](https://x.example/y)\n"
                    "[e](../outside.md)\n```\n[f](code.md)\n```\n")
    assert dead(page) == ["#nowhere", "other.md", "../outside.md"]
