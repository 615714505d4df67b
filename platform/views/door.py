"""What the operator may ask of the views at their door, a socket like the ledger's."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acs.platform.views.contract import NoSuchAccount, ViewsUnavailable
from acs.platform.views.service import ViewsService

SNAPSHOT_PATIENCE_S = 30.0  # an operator waits longer than a client
NOT_UNDERSTOOD = {"error": "The request was not understood. Are the `acs` command and the server of one version?"}

_log = logging.getLogger(__name__)


async def answer(service: ViewsService, line: bytes) -> dict[str, Any]:
    """Never raises: a fault of ours is logged by its kind and answered as one."""
    try:
        match json.loads(line):
            case {"do": "usage", "account": str(account_id), "month": str(month)}:
                return {"ok": await service.usage(account_id, month)}
            case {"do": "usage", "month": str(month)}:
                return {"ok": await service.usage_of_all(month)}
            case {"do": "snapshot", "path": str(path)}:
                return {"ok": await service.snapshot(Path(path), SNAPSHOT_PATIENCE_S)}
            case {"do": "lag"}:
                return {"ok": asdict(await service.lag())}
        return NOT_UNDERSTOOD
    except json.JSONDecodeError:
        return NOT_UNDERSTOOD
    except OSError as error:
        return {"error": f"The copy cannot be written: {error.strerror}."}
    except (ViewsUnavailable, NoSuchAccount) as error:
        return {"error": str(error)}
    except Exception as error:
        _log.error("a question to the views failed: %s", type(error).__name__)
        return {"error": f"The views failed at this ({type(error).__name__})."}
