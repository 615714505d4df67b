"""The safetensors of a hub repository at one revision. Runs in the child process of `build`."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

from acs.platform.model_source.address import Hub
from acs.platform.model_source.fault import SourceFault

# Nothing that could run (*.py) and nothing that is unpickled (*.bin, *.pth).
WANTED = ["*.safetensors", "*.safetensors.index.json", "config.json", "tokenizer.json", "tokenizer_config.json"]


def write(folder: Path, hub: Hub, say: Callable[[str], None]) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    say(f"downloading {hub.repository} at {hub.revision[:8]}")
    try:
        snapshot_download(hub.repository, revision=hub.revision, local_dir=folder, allow_patterns=WANTED)
    except GatedRepoError:
        raise SourceFault(f"{hub.repository} is gated: accept its licence on the hub and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise SourceFault(f"the hub has no repository {hub.repository}, or HF_TOKEN may not read it") from None
    except RevisionNotFoundError:
        raise SourceFault(f"{hub.repository} has no revision {hub.revision}") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:  # `build` has the sentence
            raise
        raise _unreachable(hub, error) from None
    except Exception as error:  # httpx's errors, and the hub's own when it finds neither network nor cache
        raise _unreachable(hub, error) from None
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub's notes on the download


def _unreachable(hub: Hub, error: Exception) -> SourceFault:
    kind = type(error).__name__
    return SourceFault(f"{hub.repository} could not be downloaded: the hub cannot be reached, or broke off ({kind})")
