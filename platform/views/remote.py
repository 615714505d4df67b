"""The views as an ingress reaches them: through the actor's handle, found at the first question."""

from __future__ import annotations

import asyncio
from typing import Any

from acs.platform import named_actor
from acs.platform.errors import PartUnavailable
from acs.platform.views.contract import NAME, ViewsUnavailable

ANSWER_S = 5.0  # 2 s for the projection, the rest for a process that is being started again


class RemoteViews:
    def __init__(self) -> None:
        self._actor: Any = None

    async def usage(self, account_id: str, month: str) -> dict[str, Any]:
        """Raises PartUnavailable."""
        from ray.exceptions import RayActorError

        try:
            async with asyncio.timeout(ANSWER_S):
                usage: dict[str, Any] = await (await self._found()).usage.remote(account_id, month)
                return usage
        except (ViewsUnavailable, TimeoutError, RayActorError) as error:
            raise PartUnavailable("The usage cannot be read at the moment. Try again.") from error

    async def _found(self) -> Any:
        if self._actor is None:
            try:
                self._actor = await asyncio.to_thread(named_actor.find, NAME)
            except ValueError as error:
                raise ViewsUnavailable("The views have not been started.") from error
        return self._actor
