"""The import package `acs`; its sub-packages are the top-level folders, linked here."""

from pathlib import Path as _Path

if not (_Path(__file__).parent / "platform").is_dir():  # a copy that lost the links (a zip, a Windows checkout)
    __path__.append(str(_Path(__file__).resolve().parent.parent))
