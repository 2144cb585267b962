"""What tests of the page do repeatedly: change the cluster, wait for what is shown, ask axe about accessibility."""

from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, expect

from tests.support.directories import transaction
from tests.support.instance import Instance

SECONDS: Final = 1000
AXE: Final = Path(__file__).parent / "vendor" / "axe.min.js"
AXE_SHA256: Final = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
"""Of axe-core 4.14.0, as its package has it."""


def commit(instance: Instance, *changes: object) -> None:
    base = instance.directory().snapshot().version
    version = instance.directory().commit(transaction(changes, base, reason="test"))  # type: ignore[arg-type]
    instance.follower().wait(version - 1, 5)


def wait_for(page: Page, selector: str, text: str) -> None:
    expect(page.locator(selector)).to_contain_text(text, timeout=20 * SECONDS)


def hindrances(page: Page) -> list[str]:
    """What axe finds on the page as it is: the rule, what it means and where."""
    source = AXE.read_bytes()
    assert sha256(source).hexdigest() == AXE_SHA256
    page.evaluate(source.decode())  # not by a script element, which the page's policy forbids
    found: list[dict[str, Any]] = page.evaluate("axe.run().then(result => result.violations)")
    return [f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:3]}" for one in found]
