"""The reference page is what the code says."""

import importlib.util
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
RULES = DOCS.parent / "deploy" / "prometheus" / "rules.yml"
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#]*)(?:#([^)]*))?\)")


@pytest.fixture(scope="module")
def build() -> Any:
    spec = importlib.util.spec_from_file_location("build_reference", DOCS / "build_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(build: Any) -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert text == build.page(), "run python docs/build_reference.py"


def test_every_setting_of_every_process_stands_there(build: Any) -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    for process, model in build.SETTINGS.items():
        section = text.split(f"## Settings of `rigcanary {process}`\n")[1].split("\n## ")[0]
        missing = [n for n in model.model_fields if f"`{n}`" not in section]
        tables = [n for n in missing if f"`[{n}]`" not in section and f"`[[{n}]]`" not in section]
        assert not tables, process


def test_no_default_depends_on_the_machine(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.page()
    monkeypatch.setattr(socket, "gethostname", lambda: "another-machine")
    assert build.page() == before


def test_troubleshooting_has_every_alert_and_no_other() -> None:
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8")))
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (Rigcanary\w+)$", text, re.M)) == alerts


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as they are made where Markdown is shown."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: str(p.name))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        other = page.parent / target if target else page
        assert other.exists(), target
        if anchor and other.suffix == ".md":
            assert anchor in anchors(other), f"{target}#{anchor}"
