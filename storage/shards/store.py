"""Where the files of one harvest lie: a folder, or a prefix in an S3-compatible bucket, behind one small interface.

A file is written under a draft's name and then renamed, so that nobody ever sees half of one. In a folder it is on disk
before it has its name; a bucket shows nothing of a file before it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import fs

from acs.storage.shards.layout import draft_name

FULL, UNAVAILABLE = "storage_full", "storage_unavailable"
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk, of whom it belongs to, of a process


class Store:
    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        """`root`: the path of the folder, or bucket/prefix. Opens nothing."""
        self._files = filesystem
        self._root = root.rstrip("/")
        self._local = isinstance(filesystem, fs.LocalFileSystem)

    @classmethod
    def at(cls, place: str) -> Store:
        """`place`: an absolute path, or `s3://bucket/prefix?endpoint_override=…`; keys come from the environment's
        AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Raises ValueError for an address that means nothing.
        """
        return cls(*fs.FileSystem.from_uri(place))

    @property
    def region(self) -> str | None:
        """The bucket's; None: this is a folder."""
        return None if self._local else self._files.region

    def inside(self, name: str) -> Store:
        """The place of that name in this one."""
        return Store(self._files, f"{self._root}/{name}")

    @contextlib.contextmanager
    def draft(self) -> Iterator[tuple[str, Any]]:
        """(name, a writable file): closed, and on disk, after the block; gone when the block raises."""
        name = draft_name()
        path = self._path(name)
        with _words(writing=True):
            try:
                if self._local and not os.path.isdir(self._root):
                    os.makedirs(self._root, mode=0o700, exist_ok=True)
                    _sync(os.path.dirname(self._root))
                with self._files.open_output_stream(path) as file:
                    yield name, file
                if self._local:
                    _sync(path)
            except BaseException:
                self.remove(name)
                raise

    def publish(self, draft: str, name: str) -> None:
        """Gives a draft its name. Whatever had the name before has it no more. Raises StoreUnavailable."""
        with _words(writing=True):
            self._files.move(self._path(draft), self._path(name))
            if self._local:
                _sync(self._root)

    def put(self, name: str, data: bytes) -> None:
        """Whole or not at all. Raises StoreUnavailable."""
        with self.draft() as (draft, file):
            file.write(data)
        self.publish(draft, name)

    def open(self, name: str) -> Any:
        """A file that can be read from anywhere. Raises FileNotFoundError and StoreUnavailable."""
        with _words():
            return self._files.open_input_file(self._path(name))

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError and StoreUnavailable."""
        with self.open(name) as file, _words():
            data: bytes = file.read()
            return data

    def sizes(self) -> dict[str, int]:
        """The files that are here, drafts included, with their bytes. Raises StoreUnavailable."""
        with _words():
            found = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return {info.base_name: info.size for info in found if info.type == fs.FileType.File}

    def places(self) -> list[str]:
        """The names of those in this one. Raises StoreUnavailable."""
        with _words():
            found = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def remove_all(self) -> None:
        """This place with all that is in it; one that is not there does nothing. Raises StoreUnavailable."""
        with _words(), contextlib.suppress(FileNotFoundError):
            self._files.delete_dir(self._root)

    def remove(self, name: str) -> None:
        """One that is not there does nothing. Raises StoreUnavailable."""
        with _words(), contextlib.suppress(FileNotFoundError):
            self._files.delete_file(self._path(name))

    def path_of(self, name: str) -> str:
        """Where the file of that name lies, or would lie."""
        return self._path(name)

    def _path(self, name: str) -> str:
        if name in ("", ".", "..") or "/" in name:
            raise ValueError(f"{name!r} is not the name of a file")
        return f"{self._root}/{name}"


@contextlib.contextmanager
def _words(*, writing: bool = False) -> Iterator[None]:
    """The faults of a disk or a bucket as one kind; that a file is not there is said as ever, unless we were writing
    it: somebody has removed it under our hands.
    """
    try:
        yield
    except FileNotFoundError as error:
        if writing:
            raise StoreUnavailable(UNAVAILABLE) from error
        raise
    except OSError as error:
        raise StoreUnavailable(FULL if error.errno in _FULL_ERRNOS else UNAVAILABLE) from error


def _sync(path: str) -> None:
    """A file's bytes, or a folder's names, are on disk afterwards."""
    descriptor = os.open(Path(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StoreUnavailable(Exception):
    """Files can be neither written nor read at the moment. `word`: FULL or UNAVAILABLE."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word
