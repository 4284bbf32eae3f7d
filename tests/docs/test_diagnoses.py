"""Every diagnosis that the rules can make has a page, and the pages say what a reader looks for."""

import re
from pathlib import Path

import pytest

from trimtab.core.types import Phase, Resource
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.interfaces.diagnose_answer import DiagnoseAnswer

DOCS = Path(__file__).resolve().parents[2] / "docs"
FOLDER = DOCS / "diagnoses"
RULES = Path(__file__).resolve().parents[2] / "src/trimtab/diagnosis/served_rules_phases.py"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


def named(path: Path) -> tuple[Phase, Resource]:
    """The phase and resource that a page's name says."""
    phase, _, resource = path.stem.partition("-")
    return Phase(phase), Resource(resource.replace("-", "_"))


def test_every_resource_that_a_rule_names_has_a_page() -> None:
    """The pages name each resource that the rules of the phases return."""
    returned = {Resource[name] for name in re.findall(r"Resource\.([A-Z_]+)", RULES.read_text())}
    assert returned == {resource for _, resource in map(named, PAGES)}
    assert {phase for phase, _ in map(named, PAGES)} == set(Phase)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_has_rule_evidence_silence_and_example(path: Path) -> None:
    """What it needs, when it is silent, an example, and what follows; the index links it."""
    text = path.read_text()
    wanted = (
        "**Rule.**",
        "**Evidence it needs.**",
        "**Silent when**",
        "## Example",
        "## What follows",
    )
    assert [part for part in wanted if part not in text] == []
    assert f"({path.name})" in (FOLDER / "README.md").read_text()


def test_every_field_of_answer_and_facts_is_documented() -> None:
    """docs/diagnose.md has each field at the top of both."""
    text = (DOCS / "diagnose.md").read_text()
    names = [*DiagnoseAnswer.__struct_encode_fields__, *ServedFacts.__struct_fields__]
    assert [name for name in names if f"`{name}`" not in text] == []
