"""Configuration reload: by content, however the files were replaced; a wrong file changes nothing."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from balancer.daemon.configuration import ConfigurationWatch, changed_bundles
from balancer.settings import Mode, load_settings
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.quick


def write(folder: Path, mode: str) -> Path:
    (folder / "bundles").mkdir(parents=True, exist_ok=True)
    (folder / "bundles" / "shop.toml").write_text(f'mode = "{mode}"\n')
    (folder / "balancer.toml").write_text('directory = "sqlite:///x.db"\n')
    return folder / "balancer.toml"


def test_a_changed_file_is_noticed_once(tmp_path: Path) -> None:
    watch = ConfigurationWatch(load_settings(write(tmp_path, "observe")))
    assert not watch.changed()
    write(tmp_path, "approve")
    assert watch.changed()
    assert watch.reload()
    assert watch.settings.bundle("shop").mode is Mode.APPROVE
    assert not watch.changed()


def settled(file: Path) -> ConfigurationWatch:
    """A watch that has seen files which were not changed for long."""
    watch = ConfigurationWatch(load_settings(file), ManualClock(datetime.now(UTC) + timedelta(hours=1)))
    assert not watch.changed()
    assert not watch.changed()
    return watch


def test_a_change_is_noticed_after_a_long_rest_whatever_its_size_and_time(tmp_path: Path) -> None:
    watch = settled(write(tmp_path, "observe"))
    bundle = tmp_path / "bundles" / "shop.toml"
    before = bundle.stat()
    bundle.write_text('mode = "approve"\n')
    os.utime(bundle, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert bundle.stat().st_size == before.st_size
    assert watch.changed()
    assert watch.reload()
    assert watch.settings.bundle("shop").mode is Mode.APPROVE


def test_files_that_come_and_go_are_noticed_after_a_long_rest(tmp_path: Path) -> None:
    watch = settled(write(tmp_path, "observe"))
    other = tmp_path / "bundles" / "mail.toml"
    other.write_text('mode = "observe"\n')
    assert watch.changed()
    assert watch.reload()
    assert not watch.changed()
    other.unlink()
    assert watch.changed()


def test_a_wrong_file_keeps_the_old_settings_until_it_is_mended(tmp_path: Path) -> None:
    watch = ConfigurationWatch(load_settings(write(tmp_path, "observe")))
    write(tmp_path, "autonomuos")
    assert not watch.reload()
    assert watch.settings.bundle("shop").mode is Mode.OBSERVE
    assert "must be 'observe', 'approve' or 'autonomous'" in watch.error
    write(tmp_path, "autonomous")
    assert watch.reload()
    assert watch.error == ""


def test_a_swapped_link_is_noticed_as_kubernetes_does_it(tmp_path: Path) -> None:
    write(tmp_path / "v1", "observe")
    write(tmp_path / "v2", "approve")
    link = tmp_path / "..data"
    link.symlink_to("v1")
    watch = settled(link / "balancer.toml")
    fresh = tmp_path / "..data_tmp"
    fresh.symlink_to("v2")
    fresh.rename(link)
    assert watch.changed()
    assert watch.reload()
    assert watch.settings.bundle("shop").mode is Mode.APPROVE


def test_what_is_read_at_the_start_only_is_named_until_it_is_changed_back(tmp_path: Path) -> None:
    file = write(tmp_path, "observe")
    watch = ConfigurationWatch(load_settings(file))
    file.write_text(
        'directory = "sqlite:///x.db"\ntick = "3s"\n[http]\nlisten = "127.0.0.1:9"\n[log]\nlevel = "debug"\n'
    )
    assert watch.reload()
    assert watch.settings.daemon.tick == 3.0
    assert watch.waits_for_restart() == ["http", "log"]
    assert watch.reload()
    assert watch.waits_for_restart() == ["http", "log"], "read once more, it still waits"
    write(tmp_path, "observe")
    assert watch.reload()
    assert watch.waits_for_restart() == []


BAD = {
    "a size with 400 zeros": b"[tablet_balancer_config]\ndesired_tablet_size = '1" + b"0" * 400 + b"GB'\n",
    "a number with 400 zeros": b"[tablet_balancer_config]\ndesired_tablet_size = 1" + b"0" * 400 + b"\n",
    "an endless duration": b"[migration]\nretire_grace = inf\n",
    "a password file that is not UTF-8": b"[nodes.a]\ndsn = 'host=a'\npassword_file = 'secret'\n",
    "a password file that is a folder": b"[nodes.a]\ndsn = 'host=a'\npassword_file = '.'\n",
    "NUL in a path": b'[nodes.a]\ndsn = "host=a"\npassword_file = "a\\u0000b"\n',
    "nested tables": b"a = " + b"{a = " * 3000 + b"1" + b"}" * 3000,
    "nested lists": b"a = " + b"[" * 3000 + b"]" * 3000,
    "not UTF-8": b"mode = '\xff'\n",
    "not TOML": b"\0",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_bundle_file_changes_nothing_and_ends_nothing(tmp_path: Path, name: str) -> None:
    watch = ConfigurationWatch(load_settings(write(tmp_path, "observe")))
    (tmp_path / "bundles" / "secret").write_bytes(b"hush\xff\xfe")
    (tmp_path / "bundles" / "shop.toml").write_bytes(BAD[name])
    assert not watch.reload()
    assert "shop.toml" in watch.error
    assert "defect" not in watch.error
    assert "hush" not in watch.error
    assert len(watch.error) < 1000
    assert watch.settings.bundle("shop").mode is Mode.OBSERVE
    write(tmp_path, "approve")
    assert watch.reload()


def test_a_folder_that_vanished_is_not_the_wish_for_no_bundles(tmp_path: Path) -> None:
    watch = ConfigurationWatch(load_settings(write(tmp_path, "observe")))
    (tmp_path / "bundles").rename(tmp_path / "elsewhere")
    for confirmed in (False, True):
        assert not watch.reload(confirmed)
        assert "is gone" in watch.error
        assert set(watch.settings.bundles) == {"shop"}
    (tmp_path / "bundles").mkdir()
    assert not watch.reload()
    assert watch.reload(confirmed=True)
    assert not watch.settings.bundles


def test_a_bundle_whose_file_is_gone_stays_until_somebody_confirms(tmp_path: Path) -> None:
    watch = ConfigurationWatch(load_settings(write(tmp_path, "observe")))
    file = tmp_path / "bundles" / "shop.toml"
    text = file.read_text()
    file.unlink()
    assert watch.changed()
    assert not watch.reload()
    assert "shop; put them back, or confirm with SIGHUP" in watch.error
    assert set(watch.settings.bundles) == {"shop"}
    file.write_text(text)
    assert watch.changed()
    assert watch.reload()
    assert watch.error == ""
    file.unlink()
    assert watch.reload(confirmed=True)
    assert not watch.settings.bundles


def test_a_folder_that_cannot_be_read_is_no_empty_folder(tmp_path: Path) -> None:
    watch = ConfigurationWatch(load_settings(write(tmp_path, "observe")))
    (tmp_path / "bundles").rename(tmp_path / "elsewhere")
    (tmp_path / "bundles").write_text("a file")
    assert not watch.reload(confirmed=True)
    assert "cannot be read: Not a directory" in watch.error


def test_a_password_that_comes_or_changes_is_taken_over_without_a_restart(tmp_path: Path) -> None:
    """As a mounted secret does: a new bundle's file may be there before its node's password."""
    (tmp_path / "passwords").mkdir()
    file = write(tmp_path, "observe")
    file.write_text('directory = "sqlite:///x.db"\nnode_passwords = "passwords"\n')
    (tmp_path / "bundles" / "shop.toml").write_text('[nodes.pg-a]\ndsn = "postgresql://balancer@pg-a/shop"\n')
    watch = settled(file)
    assert watch.settings.bundle("shop").nodes["pg-a"].password is None
    for password in ("hush", "rush"):
        (tmp_path / "passwords" / "pg-a").write_text(password)
        assert watch.changed()
        assert watch.reload()
        found = watch.settings.bundle("shop").nodes["pg-a"].password
        assert found is not None
        assert found.get_secret_value() == password


def test_only_bundles_for_which_something_is_new_tick_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "observe")
    (tmp_path / "bundles" / "mail.toml").write_text('mode = "observe"\n')
    first = load_settings(file)
    assert changed_bundles(first, load_settings(file)) == []
    write(tmp_path, "approve")
    second = load_settings(file)
    assert changed_bundles(first, second) == ["shop"]
    file.write_text('directory = "sqlite:///x.db"\nschedule = "hours < 6"\n')
    assert sorted(changed_bundles(second, load_settings(file))) == ["mail", "shop"]
    third = load_settings(file)
    (tmp_path / "bundles" / "news.toml").write_text('mode = "observe"\n')
    assert changed_bundles(third, load_settings(file)) == ["news"]
