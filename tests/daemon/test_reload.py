"""Configuration reload: by content, however the files were replaced; a wrong file changes nothing."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from balancer.daemon.reload import ConfigurationWatch
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
