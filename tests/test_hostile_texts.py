"""Texts of a megabyte, made to be slow, given to everything that takes text from outside: 50 ms each, and one sentence.

The bound is on the processor time of this thread, so that a busy machine does not decide the outcome.
"""

import time
from collections.abc import Callable

import psycopg
import pytest

from balancer.api.problems import problem
from balancer.directory.locate import parse_key
from balancer.directory.model import KeyColumn, Layout, RecordKind, Table
from balancer.directory.store.codec import from_document, unpack
from balancer.directory.store.page_codec import unpack_page
from balancer.errors import BalancerError
from balancer.logs import mask
from balancer.nodes.session.connection import translate
from balancer.policies.keyspace.keys import KeyType
from balancer.settings.files import check_directory, check_root, check_zone
from balancer.settings.from_options import check_formula
from balancer.settings.units import Dsn, parse_duration, parse_size
from balancer.untrusted import one_line, quoted

pytestmark = pytest.mark.quick

LENGTH = 1 << 20
ALLOWED = 0.050


def repeated(unit: str) -> str:
    return (unit * (LENGTH // len(unit) + 1))[:LENGTH]


TEXTS = {
    "urls without an end": repeated("://a:"),
    "one url": "postgresql://u:" + repeated("x"),
    "urls with at signs": repeated("://u:p@"),
    "password words": repeated("password "),
    "password and spaces": repeated("password" + " " * 60),
    "password glued": repeated("password"),
    "token glued": repeated("token_"),
    "open quotes": repeated("password='"),
    "open double quotes": repeated('"secret":"'),
    "backslashes": "password='" + repeated("\\"),
    "escaped quotes": "password='" + repeated("\\'"),
    "bearers": repeated("Bearer "),
    "authorizations": repeated("authorization:"),
    "digits": repeated("9"),
    "digits with a unit": repeated("9") + "GB",
    "fraction": "0." + repeated("9"),
    "spaces": repeated(" "),
    "parentheses": repeated("("),
    "exclamation marks": repeated("!"),
    "conjunctions": repeated("1 && "),
    "brackets": repeated("["),
    "objects": repeated('{"a":'),
    "zeros": repeated("\0"),
    "escapes": repeated("\x1b[31m"),
    "surrogates": repeated("\ud800"),
    "wide": repeated("\U0010ffff"),
    "lines": repeated("\n"),
    "equal signs": repeated("a='' "),
    "dots": repeated("a."),
}

COLUMNS = {kind: Table(1, "t", "b", Layout.RANGE, (KeyColumn("k", kind),), ("public.t",)) for kind in KeyType}


def of_key(kind: KeyType) -> Callable[[str], object]:
    return lambda text: parse_key(COLUMNS[kind], [text])


def encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


HANDLERS: dict[str, Callable[[str], object]] = {
    "mask": mask,
    "one_line": one_line,
    "quoted": quoted,
    "problem": lambda text: problem(422, text),
    "server error": lambda text: translate("pg-a", psycopg.OperationalError(text)),
    "server refusal": lambda text: translate("pg-a", psycopg.errors.RaiseException(text)),
    "formula": check_formula,
    "dsn": Dsn.parse,
    "size": parse_size,
    "duration": parse_duration,
    "root": check_root,
    "zone": check_zone,
    "directory address": check_directory,
    "stored document": lambda text: unpack(b"\x02\x00" + encoded(text)),
    "stored page": lambda text: unpack_page(b"\x02\x00" + encoded(text)),
    "record": lambda text: from_document(RecordKind.NODE, {"id": text, "weight": text}),
    **{f"key {kind}": of_key(kind) for kind in KeyType},
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_hostile_text_takes_no_time_and_makes_no_long_error(handler: str, text: str) -> None:
    began = time.thread_time()
    said = ""
    try:
        HANDLERS[handler](TEXTS[text])
    except (BalancerError, ValueError) as error:  # a ValueError is what a field's check raises for pydantic
        said = str(error)
    taken = time.thread_time() - began
    assert taken < ALLOWED, f"{taken:.3f} s"
    assert len(said) < 10_000
