import os
import stat
import time

import pytest

from acs.storage.blobs import Blobs, BlobUnavailable

DAY_S = 86_400


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path / "blobs" / "answers", kept_s=DAY_S)


def files(tmp_path):
    return [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]


def test_what_is_put_can_be_got_by_its_hash(blobs):
    blob = blobs.put(b"an answer")
    assert (blob.size, blobs.get(blob.sha256)) == (9, b"an answer")
    assert blobs.put(b"") != blob


def test_the_same_bytes_are_kept_once_for_their_owner_only(blobs, tmp_path):
    assert blobs.put(b"an answer") == blobs.put(b"an answer")
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_what_is_put_in_parts_is_the_same_blob_and_can_be_got_in_parts(blobs, tmp_path):
    blob = blobs.put_parts([b"an ", b"answer"])
    assert blob == blobs.put(b"an answer")
    assert len(files(tmp_path)) == 1
    assert b"".join(blobs.parts(blob.sha256)) == b"an answer"


def test_a_blob_whose_parts_stop_coming_is_none(blobs, tmp_path):
    def broken():
        yield b"an "
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        blobs.put_parts(broken())
    assert files(tmp_path) == []


def test_changed_bytes_show_at_the_end_of_their_parts(blobs, tmp_path):
    blob = blobs.put(b"an answer")
    files(tmp_path)[0].write_bytes(b"another one")
    with pytest.raises(BlobUnavailable):
        list(blobs.parts(blob.sha256))


def test_bytes_that_have_changed_are_not_given_out(blobs, tmp_path):
    blob = blobs.put(b"an answer")
    files(tmp_path)[0].write_bytes(b"another one")
    with pytest.raises(BlobUnavailable):
        blobs.get(blob.sha256)


def test_an_erased_blob_is_gone_and_erasing_it_again_does_nothing(blobs, tmp_path):
    blob = blobs.put(b"an answer")
    blobs.erase(blob.sha256)
    blobs.erase(blob.sha256)
    assert files(tmp_path) == []
    with pytest.raises(BlobUnavailable):
        blobs.get(blob.sha256)


def test_a_sweep_erases_what_was_last_put_too_long_ago_and_drafts_of_writers_that_died(blobs, tmp_path):
    old, again, new = (blobs.put(text) for text in (b"old", b"again", b"new"))
    for blob in (old, again):
        os.utime(tmp_path / "blobs/answers" / blob.sha256[:2] / blob.sha256, (0, time.time() - DAY_S - 1))
    blobs.put(b"again")
    draft = files(tmp_path)[0].with_name(".draft")
    draft.write_bytes(b"")
    os.utime(draft, (0, 0))
    assert blobs.sweep() == 2
    assert {blobs.get(blob.sha256) for blob in (again, new)} == {b"again", b"new"}
    assert len(files(tmp_path)) == 2


def test_a_name_that_is_no_address_leads_nowhere(blobs):
    for name in ("", "../" * 20 + "etc/passwd", "A" * 64):
        with pytest.raises(ValueError, match="not the address"):
            blobs.get(name)


def test_a_full_disk_is_said_and_leaves_nothing_half_written(blobs, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BlobUnavailable, match="No space left"):
        blobs.put(b"an answer")
    assert files(tmp_path) == []


def test_what_nobody_needs_is_swept_when_it_is_old(blobs, tmp_path):
    needed, other, young = (blobs.put(data) for data in (b"needed", b"other", b"young"))
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != young.sha256:
            os.utime(path, (0, 0))
    assert blobs.sweep_others({needed.sha256}, older_than_s=60) == 1
    assert blobs.get(needed.sha256) == b"needed"
    assert blobs.get(young.sha256) == b"young"
    with pytest.raises(BlobUnavailable):
        blobs.get(other.sha256)
