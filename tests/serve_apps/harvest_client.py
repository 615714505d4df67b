"""An API with a runner of Harvests, for tests of them."""

import io
from contextlib import asynccontextmanager

import pyarrow.parquet as pq
from api_client import running_api
from local_runner import LocalRunner

from acs.events.ids import HARVEST, show
from acs.events.ledger import Ledger
from acs.platform.ledger.contract import KeyChanges

RESOLVED = (Ledger.HoldSettled, Ledger.HoldReleased, Ledger.HoldExpired)
PROMPTS = ["The sky is", "Water is wet and so is the sea", "No", "Grass is green"]
HEAD = ["job_id", "status", "model", "n_prompts", "n_tokens", "created_at"]


class HarvestsApi:
    """An API with a runner."""

    def __init__(self, api):
        self.api = api
        self.http = api.http
        self.engine = api.engine
        self.files = api.services.harvest_files
        self.tokenizer = api.services.models["toy"].tokenizer

    def hire(self):
        services = self.api.services
        self.runner = LocalRunner(self.api.ledger, services.models, services.limits, services.harvest_files)
        return self.runner

    async def post(self, headers=None, query="", **fields):
        body = {"model": "toy", "prompts": PROMPTS, "layers": [0, 2], "shard_size": 2, **fields}
        return await self.http.post(f"/v1/harvest{query}", json=body, headers=headers)

    async def submit(self, headers=None, **fields):
        answer = await self.post(headers, **fields)
        assert answer.status_code == 202, answer.text
        return answer.json()["job_id"]

    async def get(self, harvest_id, query="", **fields):
        return await self.http.get(f"/v1/harvest/{harvest_id}{query}", **fields)

    async def ended(self, harvest_id):
        while (found := (await self.get(harvest_id, "?wait=60")).json())["status"] in ("pending", "running"):
            pass
        return found

    async def done(self, harvest_id):
        found = await self.ended(harvest_id)
        assert found["status"] == "done", found
        return found

    async def cancel(self, harvest_id):
        return await self.http.delete(f"/v1/harvest/{harvest_id}")

    async def shards(self, found):
        """The tables behind the links."""
        files = [await self.http.get(url, headers={"Authorization": ""}) for url in found["result"]["shard_urls"]]
        return [pq.read_table(io.BytesIO(file.content)) for file in files]

    def events(self, kinds):
        return self.api.ledger.events(kinds)

    def of(self, harvest_id, kinds):
        return [event for event in self.events(kinds) if show(HARVEST, event.originator_id) == harvest_id]

    def held_up(self, step_s=3600.0):
        """The engine takes its time from now on."""
        self.engine.step_s = step_s

    async def another_accounts(self):
        """A key of somebody else, as headers."""
        ledger, services = self.api.ledger, self.api.services
        account = ledger.account("Bob")
        _, secret = ledger.key(account)
        version, standings = ledger.memory.table.everything()
        services.keys.apply(KeyChanges("one", version, whole=True, keys=standings), sent_at=self.api.key_clock.now())
        return account, {"Authorization": f"Bearer {secret}"}


@asynccontextmanager
async def harvests_api(checkpoint, *, runner=True, **settings):
    async with running_api(checkpoint, **settings) as api:
        harvests = HarvestsApi(api)
        if runner:
            harvests.hire()
        yield harvests


def error_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


def first_shard_noted(harvests, written):
    asks = harvests.runner.harvests._asks
    ask = asks.ask

    async def noting(question, patience_s):
        if type(question).__name__ == "NoteShard":
            harvests.held_up(0.05)
        reply = await ask(question, patience_s)
        if type(question).__name__ == "NoteShard":
            written.set()
        return reply

    return noting
