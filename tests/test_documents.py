"""Documents say what the code says."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from balancer.settings.files import BundleFile, DaemonFile
from tests.support.reference_pages import FOLDER, PAGES, undocumented

pytestmark = pytest.mark.quick

TREE = Path(__file__).parents[1]


DOORS = [path for room in ("balancer", "policies", "schedules") for path in (TREE / room).rglob("__init__.py")]
_NAMED = re.compile(r"`([a-z_]+(?:/[a-z_]+)+(?:\.sql)?)`")


def named(text: str) -> set[str]:
    """The modules and rooms that a text names with their way, as `nodes/session/ask_all`."""
    return {name for name in _NAMED.findall(text) if name.split("/")[0] not in ("page", "packaging")}


def is_there(name: str, room: Path = TREE) -> bool:
    places = [top / name for top in (TREE, TREE / "balancer", room)]
    return any(place.exists() or place.with_name(f"{place.name}.py").exists() for place in places)


def test_the_modules_that_the_walks_pass_are_there() -> None:
    text = (TREE / "docs" / "architecture.md").read_text()
    assert len(named(text)) > 25
    assert [name for name in sorted(named(text)) if not is_there(name)] == []


def test_the_picture_has_every_room() -> None:
    shown = set(re.findall(r'class="n"[^>]*>(\w+)<', (TREE / "docs" / "rooms.svg").read_text()))
    rooms = {path.stem for path in (TREE / "balancer").iterdir() if not path.name.startswith((".", "_", "py."))}
    assert shown == rooms


@pytest.mark.parametrize("door", DOORS, ids=lambda path: str(path.parent.relative_to(TREE)))
def test_a_room_says_what_it_is_for(door: Path) -> None:
    """Django's folders below its backend are what Django looks for."""
    said = ast.get_docstring(ast.parse(door.read_text()))
    assert said or "management" in door.parts
    assert [name for name in sorted(named(said or "")) if not is_there(name, door.parent)] == []


def support_rows() -> list[str]:
    folder = TREE / "tests" / "support"
    rows = []
    for path in sorted(folder.rglob("*.py")):
        if path.name != "__init__.py":
            sentence = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0].replace("|", "\\|")
            rows.append(f"| `{path.relative_to(folder).with_suffix('')}` | {sentence} |")
    return rows


def test_the_index_of_what_tests_are_made_of_is_complete() -> None:
    text = (TREE / "tests" / "support" / "README.md").read_text()
    shown = [line for line in text.splitlines() if line.startswith("| `")]
    assert shown == support_rows(), "write this into tests/support/README.md:\n" + "\n".join(support_rows())


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_reference_is_what_the_code_says(page: str) -> None:
    assert (FOLDER / page).read_text() == PAGES[page](), "run `make docs`"


def test_every_setting_has_its_words() -> None:
    assert undocumented() == []


def test_every_code_has_its_line() -> None:
    text = (TREE / "docs" / "reference" / "codes.md").read_text()
    sources = [path.read_text() for path in (TREE / "balancer").rglob("*.py")]
    states = {found for source in sources for found in re.findall(r"\bTB\d{3}\b", source)}
    assert {"TB001", "TB009"} <= states
    assert sorted(states - set(re.findall(r"TB\d{3}", text))) == []
    main = ast.get_docstring(ast.parse((TREE / "balancer" / "cli" / "main.py").read_text())) or ""
    codes = set(re.findall(r"\b(\d{1,3}) [a-z]", main[main.index("Exit codes") :]))
    assert {"0", "4", "130"} <= codes
    assert sorted(code for code in codes if f"| {code} |" not in text) == []


def findings() -> list[list[str]]:
    """The words of everything that doctor may find: of each the parts that are written in the source."""
    said: list[ast.expr] = []
    for module, call in (("features/repair/doctor.py", "Finding"), ("features/reference/findings.py", "CopyFinding")):
        tree = ast.walk(ast.parse((TREE / "balancer" / module).read_text()))
        calls = [node for node in tree if isinstance(node, ast.Call) and getattr(node.func, "id", "") == call]
        said += [node.args[1] for node in calls if len(node.args) > 1]
    tree = ast.walk(ast.parse((TREE / "balancer" / "nodes" / "catalog" / "findings.py").read_text()))
    for value in (node.value for node in tree if isinstance(node, ast.Yield) and node.value is not None):
        said.append(value.elts[1] if isinstance(value, ast.Tuple) else value)
    texts = [[str(part.value) for part in ast.walk(one) if isinstance(part, ast.Constant)] for one in said]
    return [parts for parts in texts if parts]


def test_every_finding_of_doctor_has_its_line() -> None:
    rows = (TREE / "docs" / "runbook" / "doctor.md").read_text().splitlines()
    quoted = [part for row in rows if row.startswith("| `") for part in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    words = findings()
    assert len(words) > 12
    assert [parts for parts in words if not any(one in part for part in parts for one in quoted)] == []


DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "clients/*.md", "examples/*.md", "packaging/**/*.md")
    for path in TREE.glob(pattern)
    if ".venv" not in path.parts and "node_modules" not in path.parts
)


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(TREE)))
def test_every_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith(("http://", "https://", "mailto:")):
            file, _, anchor = link.partition("#")
            target = (path.parent / file) if file else path
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(link)
    assert broken == []


def configurations() -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        for number, block in enumerate(re.findall(r"```toml\n(.*?)```", path.read_text(), re.DOTALL), 1):
            found.append((f"{path.relative_to(TREE)} {number}", block))
    return found


@pytest.mark.parametrize(("place", "block"), configurations(), ids=[place for place, _ in configurations()])
def test_every_configuration_is_one(place: str, block: str) -> None:
    """As the files are read: an unknown key or a wrong value is refused."""
    document = tomllib.loads(block)
    (DaemonFile if {"directory", "http", "directory_security", "pgbouncer"} & set(document) else BundleFile)(**document)


def test_every_page_is_in_the_navigation() -> None:
    site = yaml.safe_load((TREE / "mkdocs.yml").read_text())
    named = re.findall(r"[\w/-]+\.md", str(site["nav"]))
    pages = {str(path.relative_to(TREE / "docs")) for path in (TREE / "docs").rglob("*.md")}
    assert sorted(page for page in pages - set(named) if not page.startswith("runbook/")) == []
    assert sorted(set(named) - pages) == []


def test_the_readme_is_short() -> None:
    assert 500 < len((TREE / "README.md").read_text().split()) < 850
