"""Who may read, who may change, and over which transport."""

import ssl
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from balancer.api.access import Access, check_http, is_loopback
from balancer.api.app import create_app
from balancer.api.server import ApiServer
from balancer.errors import UserError
from tests.support.certificates import self_signed
from tests.support.instance import TOKEN, Instance, bearer, http_settings, serving

DRAIN = {"verb": "drain", "node": "pg-a"}
ANYWHERE = "0.0.0.0:0"


def commands(instance: Instance) -> int:
    return len(instance.directory().snapshot().commands)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer("0"),
        bearer(TOKEN + "x"),
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \xe9".encode("latin-1")},
    ],
)
def test_a_change_without_the_token_is_refused(
    instance: Instance, client: httpx.Client, headers: dict[str, str]
) -> None:
    answer = client.post("/v1/commands", json=DRAIN, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"
    assert client.post("/v1/samples", json={}, headers=headers).status_code == 401
    assert commands(instance) == 0


def test_a_change_with_the_token_is_taken(instance: Instance, client: httpx.Client) -> None:
    answer = client.post("/v1/commands", json=DRAIN, headers=bearer())
    assert answer.status_code == 202
    assert commands(instance) == 1


def test_without_a_configured_token_nothing_can_be_changed(instance: Instance) -> None:
    with serving(instance, token=None) as client:
        assert client.post("/v1/commands", json=DRAIN, headers=bearer()).status_code == 403
        assert client.post("/v1/commands", json=DRAIN, headers=bearer("None")).status_code == 403
        assert client.get("/v1/status").status_code == 200


def test_off_loopback_a_change_needs_tls_even_with_the_token(instance: Instance) -> None:
    with serving(instance, listen=ANYWHERE, read_requires_token=False) as client:
        secure = {"X-Forwarded-Proto": "https", "Forwarded": "proto=https"}
        answer = client.post("/v1/commands", json=DRAIN, headers={**bearer(), **secure})
        assert answer.status_code == 403
        assert "TLS" in answer.json()["detail"]
        assert client.get("/v1/status").status_code == 200
    assert commands(instance) == 0


def test_over_tls_a_change_is_taken_from_anywhere(instance: Instance, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with serving(instance, listen=ANYWHERE, tls_certificate=certificate, tls_key=key) as client:
        trusting = httpx.Client(base_url=client.base_url, verify=ssl.create_default_context(cafile=str(certificate)))
        with trusting:
            answer = trusting.post("/v1/commands", json=DRAIN, headers=bearer())
            assert answer.status_code == 202
            assert "max-age" in answer.headers["strict-transport-security"]


def test_reading_can_be_closed_but_health_and_the_page_stay_open(instance: Instance) -> None:
    with serving(instance, read_requires_token=True) as client:
        for path in ("/v1/status", "/v1/overview", "/metrics", "/v1/openapi.json", "/v1/route/orders?key=1"):
            assert client.get(path).status_code == 401, path
            assert client.get(path, headers=bearer()).status_code == 200, path
        for path in ("/healthz", "/readyz", "/", "/app.js", "/style.css"):
            assert client.get(path).status_code == 200, path


def test_beyond_loopback_reading_needs_the_token_unless_it_is_opened(instance: Instance, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with serving(instance, listen=ANYWHERE, tls_certificate=certificate, tls_key=key) as client:
        assert client.get("/v1/status").status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/v1/status", headers=bearer()).status_code == 200
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "", "a@127.0.0.1"]
)
def test_a_foreign_name_is_not_answered(client: httpx.Client, host: str) -> None:
    """A page of another site whose name was made to point here (DNS rebinding)."""
    for path in ("/v1/status", "/v1/route/orders?key=1", "/metrics", "/"):
        answer = client.get(path, headers={"Host": host, "X-Forwarded-Host": "localhost", **bearer()})
        assert answer.status_code in (400, 421), path
    assert client.post("/v1/commands", json=DRAIN, headers={"Host": host, **bearer()}).status_code in (400, 421)
    if host:
        assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:1", "10.1.2.3", "tb.shop.svc.:1"])
def test_its_own_names_are_answered(instance: Instance, host: str) -> None:
    with serving(instance, allowed_hosts=["tb.shop.svc"]) as client:
        assert client.get("/v1/status", headers={"Host": host}).status_code == 200


def test_where_a_node_is_only_the_token_tells(client: httpx.Client) -> None:
    paths = ("/v1/status", "/v1/overview", "/v1/nodes", "/v1/history", "/v1/migrations", "/v1/route/orders?key=1")
    for path in paths:
        assert "postgresql://" not in client.get(path).text, path
        assert "postgresql://" not in client.get(path, headers=bearer("wrong")).text, path
    assert client.get("/v1/route/orders?key=1", headers=bearer()).json()["dsn"].startswith("postgresql://")


def test_a_token_file_is_read_again_when_it_changes(instance: Instance, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    with serving(instance, token=None, token_file=file) as client:
        assert client.post("/v1/commands", json=DRAIN, headers=bearer("first")).status_code == 202
        replacement = tmp_path / "new"
        replacement.write_text("second\n")
        replacement.rename(file)
        assert client.post("/v1/commands", json=DRAIN, headers=bearer("first")).status_code == 401
        assert client.post("/v1/commands", json=DRAIN, headers=bearer("second")).status_code == 202
        file.unlink()
        assert client.post("/v1/commands", json=DRAIN, headers=bearer("second")).status_code == 403


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tls_certificate": Path("/nowhere.crt")}, "set both"),
        ({"tls_certificate": Path("/nowhere.crt"), "tls_key": Path("/nowhere.key")}, "no file"),
        ({"read_requires_token": True, "token": None}, "no token"),
        ({"read_requires_token": True, "listen": ANYWHERE}, "clear text"),
        ({"listen": ANYWHERE}, "clear text"),
        ({"listen": ANYWHERE, "token": None}, "no token"),
        ({"listen": "192.0.2.1:1", "read_requires_token": False}, "cannot listen"),
        ({"listen": "127.0.0.1:99999"}, "cannot listen"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_sentence(
    instance: Instance, changes: dict[str, object], word: str
) -> None:
    http = http_settings(**changes)
    with pytest.raises(UserError, match=word):
        ApiServer(create_app(instance, http), http).start()


def test_a_certificate_that_is_none_is_refused(instance: Instance, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    http = http_settings(tls_certificate=nonsense, tls_key=nonsense)
    with pytest.raises(UserError, match="certificate"):
        ApiServer(create_app(instance, http), http).start()


def test_the_token_is_in_no_answer_and_no_metric(instance: Instance, client: httpx.Client) -> None:
    secret = SecretStr(TOKEN).get_secret_value()
    for path in ("/v1/status", "/v1/overview", "/metrics", "/v1/history", "/v1/openapi.json", "/"):
        assert secret not in client.get(path, headers=bearer()).text


@pytest.mark.parametrize(
    ("listen", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
    ],
)
def test_what_counts_as_loopback(listen: str, loopback: bool) -> None:
    assert is_loopback(listen) is loopback


def test_every_answer_has_the_security_headers(reader: httpx.Client) -> None:
    for path in ("/", "/v1/status", "/nowhere", "/healthz"):
        headers = reader.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


@pytest.mark.parametrize("token", ["replace-this", "changeme", "fifteen-letters"])
def test_beyond_loopback_a_token_that_is_short_or_a_templates_is_refused(tmp_path: Path, token: str) -> None:
    certificate, key = self_signed(tmp_path)
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    settings = http_settings(listen=ANYWHERE, token=None, token_file=file, tls_certificate=certificate, tls_key=key)
    with pytest.raises(UserError, match=r"fewer than 16 characters, and 0\.0\.0\.0:0 is not loopback"):
        check_http(settings)
    access = Access(settings)
    assert not access.knows(f"Bearer {token}"), "nor is it one when the file is replaced under a running instance"
    file.write_text("sixteen-letters!")
    check_http(settings)
    assert access.knows("Bearer sixteen-letters!")
    check_http(http_settings(listen="127.0.0.1:0", token=SecretStr(token)))
