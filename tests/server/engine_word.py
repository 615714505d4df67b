"""What a running server's engines say themselves, asked past the API: a program that joins the server's Ray.

    with EngineWord(server) as engines:
        engines.has_work("toy")  # [True]: each replica's engine core, by its own account
        engines.running("toy")   # [32]: what each replica's engine counts as unfinished

Ray and Serve read their settings when they are imported, so the asking is done by this file as a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

from server.running import Server

from acs.platform.server import processes
from acs.platform.server.environment import DATA_FOLDER, INSTANCE

JOIN_S = 60
ANSWER_S = 30


class EngineWord:
    def __init__(self, server: Server) -> None:
        (raylet,) = server.named("/raylet/raylet ")
        words = raylet.cmdline.split()
        address, *_ = [word.partition("=")[2] for word in words if word.startswith("--gcs-address=")]
        (driver,) = server.named("acs.serve_apps.driver")
        environ = processes.environment_of(driver.pid)
        for tag in (DATA_FOLDER, INSTANCE):  # it is not one of the server's processes
            del environ[tag]
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, address],
            env=environ | {"PYTHONPATH": str(_tests_folder())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def has_work(self, model: str) -> list[bool]:
        """Of each replica that answers: whether anything is scheduled or waits in its engine core."""
        return self._ask(model, "has_work")

    def running(self, model: str) -> list[int]:
        """Of each replica that answers: the choices its engine has not finished."""
        return [status[1] for _, _, status in self._ask(model, "endpoint")]

    def _ask(self, model: str, method: str) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([model, method]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert isinstance(answer, list), answer
        return answer

    def __enter__(self) -> EngineWord:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _tests_folder() -> str:
    return __file__.rpartition("/server/")[0]


async def _answer_questions(address: str) -> None:
    import msgspec
    import ray
    from ray import serve

    ray.init(address=address, namespace="serve", log_to_driver=False, configure_logging=False)
    loop = asyncio.get_running_loop()
    handles: dict[str, Any] = {}
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        model, method = json.loads(line)
        handle = handles.setdefault(model, serve.get_deployment_handle("model", app_name=f"model-{model}"))
        answer: Any = None
        give_up_at = time.monotonic() + ANSWER_S
        while not answer and time.monotonic() < give_up_at:  # a new handle has not yet been told of the replicas
            response = handle.broadcast(method)
            results = await response.results_async(timeout_s=ANSWER_S, return_exceptions=True)
            answer = [result for result in results if not isinstance(result, BaseException)]
            await asyncio.sleep(0 if answer else 0.05)
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_answer_questions(sys.argv[1]))
