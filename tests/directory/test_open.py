"""Addresses and credentials."""

import ssl
from pathlib import Path

import pytest

from balancer.directory.credentials import Credentials, Scheme, from_environment
from balancer.directory.open import open_directory
from balancer.directory.sqlite.backend import SqliteDirectory
from balancer.errors import Unavailable, UserError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "url",
    ["http://somewhere", "sqlite://relative/path", "sqlite:///", "zk:///cluster", "zk://host:1", "/a/path", ""],
)
def test_an_address_that_cannot_be_one_is_a_sentence(url: str) -> None:
    with pytest.raises(UserError, match="is not a directory address"):
        open_directory(url)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match="must not contain a user or a password") as caught:
        open_directory("zk://me:hunter2@host:1/cluster")
    assert "hunter2" not in str(caught.value)


def test_a_file_in_a_folder_that_does_not_exist_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_directory(f"sqlite://{tmp_path}/no/such/folder.db")


def test_an_empty_file_is_no_directory_to_a_reader_and_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(UserError, match=r"there is no directory in the file .*/empty\.db: it is empty"):
        open_directory(f"sqlite://{tmp_path}/empty.db", create=False)
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_a_file_that_is_gone_is_not_made_again_by_looking(tmp_path: Path) -> None:
    with SqliteDirectory(tmp_path / "gone.db") as directory:
        (tmp_path / "gone.db").unlink()
        with pytest.raises(Unavailable, match="cannot be opened: unable to open database file"):
            directory.open()
    assert not (tmp_path / "gone.db").exists()


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("x" * 5000)
    with pytest.raises(Unavailable, match="cannot be opened: file is not a database"):
        open_directory(f"sqlite://{tmp_path}/text.db")


def test_servers_that_do_not_answer_are_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"no ZooKeeper server at 127\.0\.0\.1:1 accepted us within 0\.5 s"):
        open_directory("zk://127.0.0.1:1/cluster", timeout=0.5)


def test_credentials_come_from_the_environment_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    found = from_environment(
        {
            "BALANCER_DIRECTORY_AUTH": "digest",
            "BALANCER_DIRECTORY_USER": "balancer",
            "BALANCER_DIRECTORY_PASSWORD_FILE": str(tmp_path / "password"),
            "BALANCER_DIRECTORY_TLS": "true",
        }
    )
    assert (found.scheme, found.user, found.password, found.tls) == (Scheme.DIGEST, "balancer", "hunter2", True)
    assert "hunter2" not in repr(found)


def test_tls_always_checks_the_certificate_and_the_host_name() -> None:
    context = Credentials(tls=True).tls_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname is True


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"AUTH": "magic"}, "allowed are none, digest, sasl"),
        ({"AUTH": "digest", "USER": "me"}, "needs BALANCER_DIRECTORY_USER and BALANCER_DIRECTORY_PASSWORD"),
        ({"PASSWORD_FILE": "/no/such/file"}, "PASSWORD_FILE cannot be read"),
        ({"TLS": "1", "CA": "/no/such/file"}, "the file /no/such/file for TLS does not exist"),
    ],
)
def test_credentials_that_cannot_work_are_a_sentence(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        _use({f"BALANCER_DIRECTORY_{name}": value for name, value in environ.items()})


def _use(environ: dict[str, str]) -> None:
    found = from_environment(environ)
    found.client_options()
    found.tls_context()
