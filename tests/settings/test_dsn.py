"""DSNs are read as libpq reads them; what may be shown is a list, and a secret that is not in it is not shown."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from balancer.settings.units import Dsn

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://balancer@pg-a/shop",
        "postgresql://u@a:5432,b:5433/d?target_session_attrs=read-write",
        "postgresql://u@[::1]:5432/d",
        "host=/var/run/postgresql dbname=shop user='a b'",
        "service=shop",
    ],
)
def test_a_dsn_without_a_secret_stays_as_it_is(text: str) -> None:
    assert Dsn.parse(text) == Dsn(text)


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ("postgresql://u:hush@h/d", "hush"),
        ("postgresql://u:hu%2Fsh@a:1,b:2/d?sslmode=require", "hu/sh"),
        ("postgresql://u:a?b#hush@h:5432/d", "a?b#hush"),
        ("postgresql://u:hush@[::1]:5432/d", "hush"),
        ("postgresql://u@h/d?password=hush&application_name=a%20b", "hush"),
        ("host=h password='hu sh' dbname=d", "hu sh"),
        ("host=h password=a\\ hush dbname=d", "a hush"),
        ("postgresql://u:hush@%2Frun%2Fpostgresql/d", "hush"),
    ],
)
def test_the_password_is_kept_apart_and_all_else_means_the_same(text: str, password: str) -> None:
    dsn = Dsn.parse(text)
    assert dsn.password is not None
    assert dsn.password.get_secret_value() == password
    assert "hush" not in dsn.text
    assert "sh" not in dsn.text.replace("shop", "")
    before, after = conninfo_to_dict(text), conninfo_to_dict(dsn.text)
    del before["password"]
    assert before == after


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("postgresql://u@h/d?sslpassword=hush", "sslpassword is not allowed in a DSN"),
        ("host=h sslpassword=hush", "sslpassword is not allowed in a DSN"),
        ("host=h scram_client_key=hush", "scram_client_key"),
        ("host=h oauth_client_secret=hush", "oauth_client_secret"),
        ("postgresql://u:pa/hush@h/d", "%2F"),
        ("postgresql://u:12/hush@h/d", "%2F"),
        ("postgresql://u:p@hush@h/d", "%40"),
        ("host=a@hush dbname=d", "@ in the host"),
        ("host=h port=hush", "port of a DSN is a number"),
        ("host=h hush", "neither a URL nor a list"),
        ("postgresql://u:%zzhush@h/d", "neither a URL nor a list"),
        ("host=h dbname=d\nhush = host=evil", "control characters"),
        ("postgresql://u@h/d%0Ahush", "control characters"),
        ("host=" + "hush" * 2000, "at most 4096"),
    ],
)
def test_what_could_show_a_secret_is_refused_without_repeating_it(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Dsn.parse(text)
    message = str(caught.value)
    assert "hush" not in message
    assert said in message or "the forms that PostgreSQL takes" in message  # a parameter that this libpq does not know
