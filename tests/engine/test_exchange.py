"""Sheets and vectors in the folder where a replica and its worker meet."""

import asyncio
import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from acs.platform.inference.contract import Generate, Sampling, Steering
from acs.serve_apps.inference.tap.choices import LONG_BYTES, Budget, TappedChoices, TappedModel
from acs.serve_apps.inference.tap.exchange import SPARES, Exchange
from acs.serve_apps.inference.tap.requests import KEY
from acs.serve_apps.inference.tap.sheet import Incomplete, Layout, Sheet, Sheets, note_begun

LAYOUT = Layout(layers=2, hidden=3, dtype="float32")
TOKENS = [7, 0, 9]


@pytest.fixture
def exchange(tmp_path):
    exchange = Exchange(tmp_path / "tensors")
    yield exchange
    exchange.close()


def write(sheet: Sheet, position: int, token_id: int, value: float, label: int | None = None) -> None:
    """One record, as the worker writes it: every number of its rows is `value`, that of the second Layer is 1 more."""
    rows = np.repeat(np.float32([value, value + 1]), 3)
    record = np.int32([position + 1 if label is None else label, token_id]).tobytes() + rows.tobytes()
    with open(sheet.path, "r+b") as file:
        os.pwrite(file.fileno(), record, position * LAYOUT.record_bytes)


def test_rows_come_by_layer_and_position_in_whatever_order_they_were_written(exchange):
    sheet = exchange.sheet(LAYOUT, 4)
    for position, value in ((2, 30.0), (0, 10.0), (1, 99.0), (1, 20.0)):  # the later of two counts
        write(sheet, position, TOKENS[position], value)
    rows = np.frombuffer(sheet.read(TOKENS), "<f4").reshape(2, 3, 3)
    assert rows[0].tolist() == [[10] * 3, [20] * 3, [30] * 3]
    assert (rows[1] == rows[0] + 1).all()


def test_rows_beyond_the_last_token_do_not_matter(exchange):
    sheet = exchange.sheet(LAYOUT, 4)
    for position, token_id in enumerate([*TOKENS, 5]):
        write(sheet, position, token_id, 1.0)
    assert len(sheet.read(TOKENS)) == 2 * 3 * 3 * 4


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_row_is_an_error(exchange, missing):
    sheet = exchange.sheet(LAYOUT, 4)
    for position in {0, 1, 2} - {missing}:
        write(sheet, position, TOKENS[position], 1.0)
    with pytest.raises(Incomplete):
        sheet.read(TOKENS)
    with pytest.raises(Incomplete):
        sheet.check(0, TOKENS)


@pytest.mark.parametrize(("token_id", "label"), [(8, None), (0, 1), (0, 3)])
def test_the_row_of_another_token_or_position_is_an_error(exchange, token_id, label):
    sheet = exchange.sheet(LAYOUT, 4)
    for position in (0, 2):
        write(sheet, position, TOKENS[position], 1.0)
    write(sheet, 1, token_id, 1.0, label)
    with pytest.raises(Incomplete, match="at position 1"):
        sheet.read(TOKENS)


def test_choices_of_a_request_are_read_from_where_each_begins(exchange):
    sheet = exchange.sheet(LAYOUT, 6)
    for start in (0, 3):
        for position, token_id in enumerate(TOKENS):
            write(sheet, start + position, token_id, float(start), label=position + 1)
    for start in (0, 3):
        assert set(np.frombuffer(sheet.read(TOKENS, start), "<f4")) == {start, start + 1}
    with pytest.raises(Incomplete):
        sheet.read(TOKENS, 2)


def test_a_sheet_is_mapped_once_for_all_its_choices_and_unmapped_with_the_last(exchange):
    sheets, sheet = Sheets(), exchange.sheet(LAYOUT, 2)

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(sheet.path)) - 1  # the replica's own

    choices = [sheets.records(sheet.path, LAYOUT, again=False)[number : number + 1] for number in range(2)]
    assert mappings() == 1
    choices[1][:] = 7
    assert sheets.records(sheet.path, LAYOUT, again=False)[1].tolist() == [7] * LAYOUT.record_bytes
    del choices[0]
    assert mappings() == 1
    del choices[0]
    assert mappings() == 0


def test_a_sheet_that_is_used_again_shows_nothing_of_who_had_it_before_and_is_mapped_once(exchange):
    def mappings(sheet: Sheet) -> int:
        return Path("/proc/self/maps").read_text().count(str(sheet.path))

    sheets, first = Sheets(), exchange.sheet(LAYOUT, 3, again=True)
    for position, token_id in enumerate(TOKENS):
        write(first, position, token_id, 1.0)
    first.read(TOKENS)
    for layout in (Layout(layers=5, hidden=7, dtype="float32"), LAYOUT):
        exchange.spare(first)
        second = exchange.sheet(layout, 3, again=True)
        assert second.path == first.path
        with pytest.raises(Incomplete, match="3 of 3 rows"):
            second.read(TOKENS)
        sheets.records(second.path, layout, again=True)[:] = 1
        assert mappings(first) == 2, "by the worker and by the replica"


@pytest.mark.parametrize("count", [1, 3])
def test_what_was_read_stays_as_it_was_when_another_uses_the_sheet_again(exchange, count):
    first = exchange.sheet(LAYOUT, 3, again=True)
    for position, token_id in enumerate(TOKENS):
        write(first, position, token_id, 1.0)
    read = first.read(TOKENS[:count])
    before = bytes(read)
    exchange.spare(first)
    write(exchange.sheet(LAYOUT, 3, again=True), 0, TOKENS[0], 9.0)
    assert bytes(read) == before


def test_the_memory_of_sheets_kept_for_later_is_there_for_who_needs_it_now(exchange, monkeypatch):
    kept = [exchange.sheet(LAYOUT, 1, again=True) for _ in range(2)]
    for sheet in kept:
        exchange.spare(sheet)
    allocate = os.posix_fallocate

    def full(descriptor, start, size):
        if any(sheet.path.exists() for sheet in kept):
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert exchange.sheet(LAYOUT, 4).path.exists()


def test_a_sheet_that_is_not_used_again_after_all_is_unmapped_when_the_next_is_mapped(exchange):
    sheets, gone = Sheets(), exchange.sheet(LAYOUT, 3, again=True)
    sheets.records(gone.path, LAYOUT, again=True)
    gone.remove()
    sheets.records(exchange.sheet(LAYOUT, 3).path, LAYOUT, again=False)
    assert str(gone.path) not in Path("/proc/self/maps").read_text()


def test_the_replica_sees_which_choices_have_begun_and_takes_that_for_no_row(exchange):
    sheets, sheet = Sheets(), exchange.sheet(LAYOUT, 6)
    assert [sheet.has_begun(start) for start in (0, 3)] == [False, False]
    note_begun(sheets.records(sheet.path, LAYOUT, again=False)[3:])
    assert [sheet.has_begun(start) for start in (0, 3)] == [False, True]
    with pytest.raises(Incomplete, match="3 of 3 rows are wrong; at position 0 is none"):
        sheet.read(TOKENS, 3)


def test_no_more_sheets_are_kept_than_a_few(exchange):
    sheets = [exchange.sheet(LAYOUT, 1, again=True) for _ in range(SPARES + 2)]
    for sheet in sheets:
        exchange.spare(sheet)
    assert sum(path.name.startswith("sheet") for path in exchange.folder.iterdir()) == SPARES


@pytest.mark.parametrize(("read", "kept"), [([0, 1], True), ([0], False)], ids=["all read", "one was not"])
async def test_only_a_sheet_whose_every_choice_has_ended_well_is_used_again(exchange, read, kept):
    request = Generate("req", [[1], [2]], 1, Sampling(max_tokens=1), capture=[0], only_capture=True)
    budget = Budget(1)
    tapped = TappedChoices(request, TappedModel(1, 3, "float32"), exchange, budget)
    await tapped.open()
    path = Path(tapped.extra_args(0)[KEY]["sheet"])
    records = Sheets().records(path, Layout(1, 3, "float32"), again=True)
    for index in read:
        records[index, :8] = np.int32([1, request.prompts[index][0]]).view(np.uint8)
        await tapped.read(index, request.prompts[index])
    tapped.close()
    await budget.take(1)  # given back once that is done
    assert path.exists() is kept


def test_labels_are_checked_from_any_position_on(exchange):
    sheet = exchange.sheet(LAYOUT, 4)
    write(sheet, 1, TOKENS[1], 1.0)
    write(sheet, 2, TOKENS[2], 1.0)
    sheet.check(1, TOKENS[1:])
    sheet.check(2, TOKENS[2:])
    with pytest.raises(Incomplete):
        sheet.check(0, TOKENS)


def test_a_sheet_that_the_worker_has_removed_is_an_error(exchange):
    sheet = exchange.sheet(LAYOUT, 4)
    sheet.remove()
    with pytest.raises(Incomplete):
        sheet.read(TOKENS)
    with pytest.raises(Incomplete):
        sheet.check(0, TOKENS)


def test_a_sheet_that_the_worker_removes_while_it_is_looked_at_is_an_error_at_the_next_token(exchange):
    sheet = exchange.sheet(LAYOUT, 4)
    write(sheet, 0, TOKENS[0], 1.0)
    sheet.check(0, TOKENS[:1])
    sheet.remove()
    with pytest.raises(Incomplete, match="given the request up"):
        sheet.check(1, TOKENS[1:2])


def test_only_the_owner_reads_the_folder_and_its_files(exchange):
    sheet, vectors = exchange.sheet(LAYOUT, 4), exchange.share(b"values")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (exchange.folder.parent, exchange.folder)]
    assert modes == [0o700, 0o700]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (sheet.path, vectors)] == [0o600, 0o600]


def test_no_link_that_lies_in_the_way_is_followed(exchange, tmp_path):
    (tmp_path / "target").touch()
    (exchange.folder / "sheet-1").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        exchange.sheet(LAYOUT, 4)


def test_vectors_of_the_same_content_are_one_file_until_the_last_lets_go(exchange):
    first, second, other = exchange.share(b"same"), exchange.share(b"same"), exchange.share(b"other")
    assert first == second != other
    exchange.release(first)
    assert second.read_bytes() == b"same"
    exchange.release(second)
    assert not second.exists()


def test_vectors_that_threads_share_at_once_are_there_until_the_last_lets_go(exchange):
    data = os.urandom(2**20)
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            shared = list(threads.map(exchange.share, [data] * 8))
            assert len(set(shared)) == 1
            list(threads.map(exchange.release, shared[1:]))
            assert shared[0].read_bytes() == data
            exchange.release(shared[0])
            assert [path.name for path in exchange.folder.iterdir()] == ["lock"]


@pytest.mark.parametrize(("size", "beside"), [(LONG_BYTES // 8, False), (LONG_BYTES * 2, True)], ids=["small", "large"])
async def test_only_large_files_are_made_and_removed_beside_the_event_loop(exchange, monkeypatch, size, beside):
    """The loop of a replica carries everybody's tokens; a thread would cost a small request more than its file."""
    threads = []

    def noting(method):
        return lambda *args, **how: threads.append(threading.current_thread()) or method(*args, **how)

    monkeypatch.setattr(Exchange, "share", noting(Exchange.share))
    monkeypatch.setattr(Exchange, "release", noting(Exchange.release))
    monkeypatch.setattr(Exchange, "sheet", noting(Exchange.sheet))
    monkeypatch.setattr(Sheet, "remove", noting(Sheet.remove))
    hidden = size // 4
    steering = [Steering([0], bytes(size))]
    request = Generate("req", [[1], [2]], 1, Sampling(max_tokens=1), capture=[0], steering=steering)
    budget = Budget(1)
    tapped = TappedChoices(request, TappedModel(1, hidden, "float32"), exchange, budget)
    await tapped.open()
    given = [tapped.extra_args(index)[KEY] for index in range(2)]
    assert [Path(one["sheet"]).stat().st_size for one in given] == [2 * (size + 8)] * 2
    assert [one["records"] for one in given] == [[0, 1], [1, 2]]
    tapped.close()
    await budget.take(1)  # given back once the files are gone
    assert [path.name for path in exchange.folder.iterdir()] == ["lock"]
    assert [thread is not threading.main_thread() for thread in threads] == [beside] * 4


def test_what_finds_no_room_leaves_nothing_behind_and_is_made_when_there_is_room_again(exchange):
    with pytest.raises(OSError, match=r"large|space"):
        exchange.sheet(LAYOUT, 2**50)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            exchange.share(b"values beyond ten bytes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in exchange.folder.iterdir()] == ["lock"]
    assert exchange.share(b"values beyond ten bytes").read_bytes() == b"values beyond ten bytes"


def test_what_a_killed_replica_left_is_swept_and_a_living_one_is_let_be(exchange, tmp_path):
    tensors = exchange.folder.parent
    program = (
        "import os, sys; from pathlib import Path; from acs.serve_apps.inference.tap.exchange import Exchange\n"
        "from acs.serve_apps.inference.tap.sheet import Layout\n"
        "left = Exchange(Path(sys.argv[1])); left.sheet(Layout(1, 1, 'float32'), 1); print(left.folder, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program, str(tensors)], capture_output=True, text=True
    ).stdout.strip()
    assert os.listdir(killed)
    Exchange(tensors).close()
    assert list(tensors.iterdir()) == [exchange.folder]


async def test_bytes_in_flight_are_bounded_and_whoever_waits_comes_in_turn():
    budget, order = Budget(100), []

    async def use(name: str, amount: int) -> None:
        await budget.take(amount)
        order.append(name)

    await use("first", 60)
    waiting = [asyncio.create_task(use(name, amount)) for name, amount in (("second", 60), ("third", 10))]
    await asyncio.sleep(0)
    assert order == ["first"]
    budget.give_back(60)
    await asyncio.gather(*waiting)
    assert order == ["first", "second", "third"]


async def test_a_request_larger_than_all_passes_alone():
    budget = Budget(100)
    await budget.take(500)
    late = asyncio.create_task(budget.take(1))
    await asyncio.sleep(0)
    assert not late.done()
    budget.give_back(500)
    await late
