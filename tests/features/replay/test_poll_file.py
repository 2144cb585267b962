"""Polls in files: bounded, rotated, and whatever is in one, its reader gets polls or one sentence."""

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.errors import UserError
from balancer.features.replay.poll_file import PollFile, RecordedPoll, read_polls
from balancer.policies.options import BundleOptions, PlacementOptions
from tests.support.bundle_views import GB, NOW, Tablets, bundle_of, leaves
from tests.support.samples import samples

pytestmark = pytest.mark.quick

MB = 1 << 20


def poll(at: int, tablets: int = 8) -> RecordedPoll:
    view = bundle_of({"t": Tablets([GB] * tablets, leaves(tablets), writes=at)}, ("a", "b"), samples={1: samples([1])})
    options = BundleOptions(placement=PlacementOptions(start_threshold=0.3))
    return RecordedPoll(replace(view, now=NOW + at), options, "Europe/Moscow")


def test_polls_are_read_as_they_were_written_without_peoples_keys(tmp_path: Path) -> None:
    file = PollFile(tmp_path / "r", MB, 2)
    for at in range(3):
        file.add(poll(at))
    found = read_polls(tmp_path / "r")
    assert [one.view.now for one in found] == [NOW, NOW + 1, NOW + 2]
    assert found[2].view.tablets.write_rate.tolist() == [2.0] * 8
    assert (found[0].options.placement.start_threshold, found[0].timezone) == (0.3, "Europe/Moscow")
    assert found[0].view.samples == {}
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o600


def test_files_are_bounded_and_the_oldest_polls_go_first(tmp_path: Path) -> None:
    file = PollFile(tmp_path / "r", 24 * 1024, 3)
    for at in range(100):
        file.add(poll(at))
        assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 24 * 1024
    assert sorted(one.name for one in tmp_path.iterdir()) == ["r", "r.1", "r.2"]
    times = [one.view.now - NOW for one in read_polls(tmp_path / "r")]
    assert times == sorted(times)
    assert times[-1] == 99
    assert 5 < len(times) < 60


def test_one_file_alone_begins_from_the_start(tmp_path: Path) -> None:
    file = PollFile(tmp_path / "r", 8 * 1024, 1)
    for at in range(20):
        file.add(poll(at))
    assert [one.name for one in tmp_path.iterdir()] == ["r"]
    assert read_polls(tmp_path / "r")[-1].view.now == NOW + 19


def test_a_poll_that_fits_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a poll takes \d+ bytes, and each of the 2 files has 50: allow more"):
        PollFile(tmp_path / "r", 100, 2).add(poll(0))
    with pytest.raises(UserError, match="1 to 100 files, not 0"):
        PollFile(tmp_path / "r", 100, 0)


def test_a_line_that_was_cut_off_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "r"
    file = PollFile(path, MB, 2)
    file.add(poll(0))
    file.add(poll(1))
    path.write_bytes(path.read_bytes()[:-10])
    assert [one.view.now for one in read_polls(path)] == [NOW]
    PollFile(path, MB, 2).add(poll(2))
    assert [one.view.now for one in read_polls(path)] == [NOW, NOW + 2]


@pytest.mark.parametrize("content", [b"dear diary\n", b"dear diary", b"{}\n"])
def test_what_is_no_record_is_not_written_into(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"not a record|not a poll"):
        PollFile(path, MB, 2)
    assert path.read_bytes() == content


def packed(document: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()


def bomb() -> str:
    """Half a gigabyte of zeros."""
    press, piece = zlib.compressobj(1), bytes(1 << 20)
    return base64.b64encode(b"".join(press.compress(piece) for _ in range(512)) + press.flush()).decode()


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b"\xff\xfe", "is not a poll"),
        (b"[]", "is not a poll"),
        (b"[" * 100_000, "is not a poll"),
        (b'{"format": 1}', "is not a poll"),
        (b'{"format": 1, "timezone": 3, "input": ""}', "is not a poll"),
        (b'{"format": 2, "timezone": "UTC", "input": ""}', "has the format 2, and this version reads 1"),
        (b'{"format": 1, "timezone": "UTC", "input": ""}', "is damaged"),
        (b'{"format": 1, "timezone": "UTC", "input": "%%%"}', "is damaged"),
        (json.dumps({"format": 1, "timezone": "UTC", "input": packed({})}).encode(), "is damaged"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_place(tmp_path: Path, line: bytes, part: str) -> None:
    check_bad_line(tmp_path, line, part)


def test_a_line_that_unpacks_to_half_a_gigabyte_is_damaged(tmp_path: Path) -> None:
    check_bad_line(tmp_path, json.dumps({"format": 1, "timezone": "UTC", "input": bomb()}).encode(), "is damaged")


def check_bad_line(tmp_path: Path, line: bytes, part: str) -> None:
    path = tmp_path / "r"
    PollFile(path, MB, 2).add(poll(0))
    with path.open("ab") as opened:
        opened.write(line + b"\n")
    with pytest.raises(UserError) as caught:
        read_polls(path)
    assert f"line 2 of the record {path} {part}" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("bundle", ["shop"]),
        ("now", "noon"),
        ("now", float("nan")),
        ("measured_bytes_per_second", "fast"),
        ("tables.0.first", "0"),
        ("tables.0.name", 7),
        ("tables.0.hash", "yes"),
        ("nodes.0.weight", -1.0),
        ("nodes.0.memory", float("inf")),
        ("pinned", ["one"]),
        ("tablets.sizes.0", "O"),
        ("tablets.sizes.0", "<U2"),
        ("tablets.ids.0", "float64"),
        ("tablets.write_rate", None),
        ("tablets", {}),
        ("options.placement.dimensions", "many"),
    ],
)
def test_what_is_not_of_its_type_is_damaged(tmp_path: Path, place: str, value: object) -> None:
    path = tmp_path / "r"
    PollFile(path, MB, 2).add(poll(0))
    document = json.loads(path.read_bytes())
    inside = json.loads(zlib.decompress(base64.b64decode(document["input"])))
    *way, last = (int(part) if part.isdecimal() else part for part in place.split("."))
    at = inside
    for part in way:
        at = at[part]
    at[last] = value
    path.write_text(json.dumps({**document, "input": packed(inside)}) + "\n")
    with pytest.raises(UserError, match="is damaged"):
        read_polls(path)


def test_no_record_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_polls(tmp_path / "none")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_polls(tmp_path)
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        PollFile(tmp_path, MB, 2)
