import errno

import pyarrow as pa
import pytest
from pyarrow import fs

from acs.storage.shards.store import FULL, UNAVAILABLE, Store, StoreUnavailable


def test_what_is_put_can_be_read_whole_or_in_part(store):
    store.put("manifest.json", b"0123456789")
    assert store.read("manifest.json") == b"0123456789"
    with store.open("manifest.json") as file:
        file.seek(3)
        assert file.read(4) == b"3456"
    assert store.sizes() == {"manifest.json": 10}


def test_a_place_inside_another_is_apart_from_it(store):
    store.inside("a").put("x", b"1")
    store.inside("b").put("x", b"2")
    assert (store.inside("a").read("x"), store.sizes()) == (b"1", {})


def test_a_name_is_the_name_of_a_file_and_leads_nowhere_else(store):
    for name in ("../x", "a/b", "..", "."):
        with pytest.raises(ValueError, match="not the name of a file"):
            store.read(name)


def test_what_is_not_there_is_said_so_and_removing_it_does_nothing(store):
    assert store.sizes() == {}
    store.remove("manifest.json")
    with pytest.raises(FileNotFoundError):
        store.open("manifest.json")


def test_a_place_that_is_no_folder_is_unavailable(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable) as caught:
        Store.at(str(tmp_path / "file" / "hrv_1")).put("x", b"")
    assert caught.value.word == UNAVAILABLE


class FullDisk(fs.FileSystemHandler):
    """pyarrow's own local files, until they are written to."""

    def open_output_stream(self, path, metadata):
        class Full:
            closed = False

            def write(self, data):
                raise OSError(errno.ENOSPC, "No space left on device")

            def flush(self):
                pass

            def close(self):
                self.closed = True

        return pa.PythonFile(Full(), mode="w")

    def delete_file(self, path):
        pass

    def _not_asked(self, *args):
        raise AssertionError

    equals = get_type_name = normalize_path = get_file_info = get_file_info_selector = create_dir = delete_dir = (
        _not_asked
    )
    delete_dir_contents = delete_root_dir_contents = move = copy_file = open_input_stream = open_input_file = _not_asked
    open_append_stream = _not_asked


def test_a_full_disk_is_said_to_be_full():
    full = Store(fs.PyFileSystem(FullDisk()), "/somewhere")
    with pytest.raises(StoreUnavailable) as caught:
        full.put("x", b"data")
    assert caught.value.word == FULL
