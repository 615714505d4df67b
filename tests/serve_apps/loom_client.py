"""An API with a runner of Branches, for tests of Looms."""

import asyncio
from contextlib import asynccontextmanager

from api_client import running_api, until
from local_runner import LocalRunner

from acs.events.ledger import Ledger

RESOLVED = (Ledger.HoldSettled, Ledger.HoldReleased, Ledger.HoldExpired)
PROMPT = "The sky is"


class LoomsApi:
    def __init__(self, api):
        self.api = api
        self.http = api.http
        self.engine = api.engine
        self.new_runner()

    def new_runner(self):
        services = self.api.services
        self.runner = LocalRunner(self.api.ledger, services.models, services.limits, services.harvest_files)

    async def plant(self, prompt=PROMPT, **fields):
        """(its id, its root's)"""
        answer = await self.http.post("/v1/looms", json={"prompt": prompt, **fields})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"], answer.json()["nodes"][0]["id"]

    async def ask(self, loom_id, node_id, headers=None, **fields):
        body = {"model": "toy", "max_tokens": 3, **fields}
        return await self.http.post(f"/v1/looms/{loom_id}/nodes/{node_id}/branch", json=body, headers=headers)

    async def branch(self, loom_id, node_id, **fields):
        """The Nodes' ids, at once."""
        answer = await self.ask(loom_id, node_id, **fields)
        assert answer.status_code == 202, answer.text
        return [node["id"] for node in answer.json()["nodes"]]

    async def grow(self, loom_id, node_id, **fields):
        """The Nodes, once they are done or have failed."""
        ids = await self.branch(loom_id, node_id, **fields)
        await self.ended(loom_id)
        nodes = await self.nodes(loom_id)
        return [nodes[id] for id in ids]

    async def loom(self, loom_id, **query):
        answer = await self.http.get(f"/v1/looms/{loom_id}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def nodes(self, loom_id):
        return {node["id"]: node for node in (await self.loom(loom_id))["nodes"]}

    async def ended(self, loom_id):
        while any(node["status"] in ("pending", "running") for node in (await self.nodes(loom_id)).values()):
            self.api.ledger.job_desk.look_after()
            await asyncio.sleep(0.001)

    async def text(self, loom_id, node_id):
        answer = await self.http.get(f"/v1/looms/{loom_id}", params={"format": "text", "node": node_id})
        assert answer.status_code == 200, answer.text
        return answer.text

    async def delete(self, loom_id, node_id=None):
        return await self.http.delete(f"/v1/looms/{loom_id}" + (f"/nodes/{node_id}" if node_id else ""))

    def events(self, kinds):
        return self.api.ledger.events(kinds)

    def blobs(self):
        """How many lie on the disk."""
        return sum(1 for path in self.api.ledger.loom_blobs._folder.glob("??/*"))

    async def running_in_engine(self, count):
        await until(lambda: self.api.running == count)


@asynccontextmanager
async def looms_api(checkpoint, **settings):
    async with running_api(checkpoint, **{"job_retry_s": 0.001, **settings}) as api:
        yield LoomsApi(api)
