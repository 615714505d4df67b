-- Everything here is folded from the events by the files in fold/: delete the database and it is made again.
-- What stands after `--` on the line of a table, a view or a column is its comment in the database too.
-- Times are UTC. Ids are spelled as people see them: acct_…, key_…, hold_….

CREATE TABLE projection ( -- how far the events have been read
    position BIGINT NOT NULL, -- of the last event in these tables; 0: none
    last_event VARCHAR, -- SHA-256 of that event: in another store another one stands there
    made_by VARCHAR NOT NULL, -- fingerprint of the SQL that fills these tables
);

CREATE TABLE accounts ( -- whose keys, tokens and work these are
    account_id VARCHAR NOT NULL, -- acct_…
    name VARCHAR NOT NULL,
    email VARCHAR NOT NULL,
    state VARCHAR NOT NULL, -- active or suspended
    budget_tokens BIGINT, -- standing, for a calendar month; null: unlimited
    spend_limit_micro_usd BIGINT, -- for a UTC day; null: none
    created_at TIMESTAMP NOT NULL,
);

CREATE TABLE keys ( -- API keys, without their secrets
    key_id VARCHAR NOT NULL, -- key_…
    account_id VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    prefix VARCHAR NOT NULL, -- the first characters of the secret, to tell keys apart
    state VARCHAR NOT NULL, -- active, disabled or revoked
    budget_tokens BIGINT, -- standing, for a calendar month; null: only the account's own
    created_at TIMESTAMP NOT NULL,
);

CREATE TABLE platform_settings ( -- one row: what holds for all accounts together
    spend_limit_micro_usd BIGINT, -- for a UTC day; null: none
);

CREATE TABLE ledgers ( -- an account's book of one calendar month
    account_id VARCHAR NOT NULL,
    month VARCHAR NOT NULL, -- as 2026-11
    budget_tokens BIGINT, -- of this month; null: unlimited
    held_tokens BIGINT NOT NULL, -- set aside by Holds that are open now
    charged_tokens BIGINT NOT NULL,
    charged_pico_usd BIGINT NOT NULL, -- 10⁻¹² dollars, exact
    ledger_id VARCHAR NOT NULL, -- of its stream of events
);

CREATE TABLE key_ledgers ( -- a key's part of its account's book
    account_id VARCHAR NOT NULL,
    month VARCHAR NOT NULL, -- as 2026-11
    key_id VARCHAR NOT NULL,
    budget_tokens BIGINT, -- of this month; null: only the account's own
    held_tokens BIGINT NOT NULL, -- set aside by Holds that are open now
    charged_tokens BIGINT NOT NULL,
    charged_pico_usd BIGINT NOT NULL, -- 10⁻¹² dollars, exact
);

CREATE TABLE daily_usage ( -- what ended requests used, by the UTC day on which their Hold was placed
    day DATE NOT NULL,
    account_id VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL,
    model VARCHAR NOT NULL, -- id in the catalogue
    requests BIGINT NOT NULL, -- settled, so charged
    prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    charged_tokens BIGINT NOT NULL, -- prompt + completion
    charged_pico_usd BIGINT NOT NULL, -- 10⁻¹² dollars, exact
    released_requests BIGINT NOT NULL, -- failed, nothing charged
    expired_requests BIGINT NOT NULL, -- lost with the process that ran them, nothing charged
);

CREATE TABLE late_settlements ( -- attempts to end a Hold that had ended otherwise: recorded, never applied
    hold_id VARCHAR NOT NULL,
    account_id VARCHAR NOT NULL,
    resolved_as VARCHAR NOT NULL, -- what stands: settled, released or expired
    asked_as VARCHAR NOT NULL, -- settled or released
    prompt_tokens BIGINT NOT NULL, -- that would have been charged
    completion_tokens BIGINT NOT NULL, -- that would have been charged
    noted_at TIMESTAMP NOT NULL,
);

CREATE TABLE jobs ( -- Completions that ran on the server after their client had gone
    job_id VARCHAR NOT NULL, -- job_…
    account_id VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL,
    model VARCHAR NOT NULL, -- id in the catalogue
    hold_id VARCHAR NOT NULL, -- placed when it was submitted, resolved when it ended
    request_id VARCHAR NOT NULL, -- of the request that submitted it
    status VARCHAR NOT NULL, -- queued, running, succeeded, failed or cancelled
    runs BIGINT NOT NULL, -- how often it was started
    failed_tries BIGINT NOT NULL, -- that were tried again
    http_status BIGINT, -- of the Completion; null until it has ended, and for a cancelled one
    error_code VARCHAR, -- of a failed one
    result_bytes BIGINT, -- null until it has ended, and for a cancelled one
    submitted_at TIMESTAMP NOT NULL,
    started_at TIMESTAMP, -- of the last run
    finished_at TIMESTAMP,
    expired_at TIMESTAMP, -- when its result was erased
);

CREATE TABLE harvests ( -- activations of many prompts, read into files
    harvest_id VARCHAR NOT NULL, -- hrv_…, the job_id of its object
    account_id VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL,
    model VARCHAR NOT NULL, -- id in the catalogue
    hold_id VARCHAR NOT NULL, -- placed when it was submitted, resolved when it ended; its charge is in charges
    request_id VARCHAR NOT NULL, -- of the request that submitted it
    status VARCHAR NOT NULL, -- pending, running, done, failed or cancelled
    runs BIGINT NOT NULL, -- how often it was started
    n_prompts BIGINT NOT NULL,
    n_tokens BIGINT NOT NULL, -- of the prompts
    n_shards BIGINT NOT NULL, -- files of rows
    layers BIGINT[] NOT NULL, -- ascending
    width BIGINT NOT NULL, -- numbers a Layer and row
    positions VARCHAR NOT NULL, -- all, last or mean
    max_bytes BIGINT NOT NULL, -- of all rows as float32
    word VARCHAR, -- why it failed or was cancelled
    submitted_at TIMESTAMP NOT NULL,
    started_at TIMESTAMP, -- of the first run
    finished_at TIMESTAMP,
    expired_at TIMESTAMP, -- from when on its files are gone
);

CREATE TABLE harvest_shards ( -- their files of rows
    harvest_id VARCHAR NOT NULL,
    shard BIGINT NOT NULL, -- in the order of the prompts, from 0
    file VARCHAR NOT NULL, -- its name, in the folder of the harvest
    n_rows BIGINT NOT NULL,
    bytes BIGINT NOT NULL, -- of the file
    sha256 VARCHAR NOT NULL, -- of the file
    n_prompts BIGINT NOT NULL,
    n_tokens BIGINT NOT NULL, -- read for it
    forward_ms BIGINT NOT NULL, -- in the model, from its first chunk's start to its last chunk's end
    write_ms BIGINT NOT NULL,
    written_at TIMESTAMP NOT NULL,
);

-- Holds lie in two tables, so that the large one only grows. Ask the view `holds`.

CREATE TABLE open_holds ( -- part of `holds`
    hold_id VARCHAR NOT NULL,
    account_id VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL,
    request_id VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    owner VARCHAR NOT NULL,
    user_label VARCHAR,
    month VARCHAR NOT NULL,
    choices BIGINT NOT NULL,
    max_tokens BIGINT NOT NULL,
    held_prompt_tokens BIGINT NOT NULL,
    held_tokens BIGINT NOT NULL,
    held_pico_usd BIGINT NOT NULL,
    prompt_micro_usd_per_million BIGINT NOT NULL,
    completion_micro_usd_per_million BIGINT NOT NULL,
    placed_at TIMESTAMP NOT NULL,
);

CREATE TABLE ended_holds AS FROM open_holds; -- part of `holds`
ALTER TABLE ended_holds ADD COLUMN status VARCHAR;
ALTER TABLE ended_holds ADD COLUMN prompt_tokens BIGINT;
ALTER TABLE ended_holds ADD COLUMN completion_tokens BIGINT;
ALTER TABLE ended_holds ADD COLUMN charged_pico_usd BIGINT;
ALTER TABLE ended_holds ADD COLUMN release_reason VARCHAR;
ALTER TABLE ended_holds ADD COLUMN http_status BIGINT;
ALTER TABLE ended_holds ADD COLUMN resolved_at TIMESTAMP;

CREATE VIEW holds AS SELECT -- the most each request could cost, set aside before it ran; one row a request
    hold_id, -- hold_…
    account_id,
    key_id,
    request_id, -- X-Request-Id, the client's or ours: a label, may repeat
    model, -- id in the catalogue
    kind, -- completion, job, harvest or branch
    owner, -- the ingress, Job, harvest or Loom whose end ends it
    user_label, -- the field user of the request
    month, -- whose ledger it counts in, as 2026-11
    coalesce(status, 'open') AS status, -- open, settled, released or expired
    choices, -- prompts × n
    max_tokens, -- of one choice
    held_prompt_tokens, -- each prompt once
    held_tokens, -- set aside when it was placed: held_prompt_tokens + choices × max_tokens
    coalesce(prompt_tokens, 0) AS charged_prompt_tokens,
    coalesce(completion_tokens, 0) AS charged_completion_tokens,
    coalesce(prompt_tokens + completion_tokens, 0) AS charged_tokens, -- 0 unless settled
    held_pico_usd, -- the most it could cost, in 10⁻¹² dollars
    coalesce(charged_pico_usd, 0) AS charged_pico_usd, -- what it did cost, in 10⁻¹² dollars; 0 unless settled
    prompt_micro_usd_per_million, -- price, in micro-dollars per million tokens
    completion_micro_usd_per_million, -- price, in micro-dollars per million tokens
    release_reason, -- the error's code, of a released one
    http_status, -- what the client was answered; null: it had gone, or nothing was answered
    placed_at,
    resolved_at, -- null while open
FROM (FROM ended_holds UNION ALL BY NAME FROM open_holds);

CREATE VIEW charges AS SELECT -- what settled requests cost; one row a settled Hold
    hold_id,
    account_id,
    key_id,
    request_id,
    model,
    kind,
    user_label,
    month, -- whose ledger it counts in, as 2026-11
    prompt_tokens, -- each prompt once
    completion_tokens, -- of all choices
    prompt_tokens + completion_tokens AS charged_tokens,
    charged_pico_usd, -- 10⁻¹² dollars, exact
    charged_pico_usd / 1e6 AS charged_micro_usd, -- the same, to look at
    placed_at,
    resolved_at AS charged_at,
FROM ended_holds WHERE status = 'settled';

CREATE VIEW requests AS SELECT -- what was asked and how it ended, without any text
    request_id, -- X-Request-Id, the client's or ours: a label, may repeat
    hold_id,
    account_id,
    key_id,
    model, -- id in the catalogue
    kind, -- completion, job, harvest or branch
    user_label, -- the field user of the request
    choices, -- prompts × n
    max_tokens, -- of one choice, as it was held
    held_prompt_tokens AS prompt_tokens,
    charged_completion_tokens AS completion_tokens, -- 0 unless settled
    status AS hold_status, -- open (running), settled, released or expired
    http_status, -- what the client was answered; null: it had gone, or it runs
    release_reason AS error_code, -- of one that failed
    placed_at AS started_at,
    resolved_at AS ended_at,
    epoch_ms(resolved_at) - epoch_ms(placed_at) AS duration_ms,
FROM holds;

CREATE TABLE planted_looms ( -- part of `looms`
    loom_id VARCHAR NOT NULL,
    account_id VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    version BIGINT NOT NULL,
    created_at TIMESTAMP NOT NULL,
    deleted_at TIMESTAMP,
);

CREATE TABLE loom_branches ( -- what was asked of a Loom at once, under one Hold
    branch_id VARCHAR NOT NULL, -- branch_…
    loom_id VARCHAR NOT NULL,
    account_id VARCHAR NOT NULL,
    key_id VARCHAR NOT NULL,
    model VARCHAR NOT NULL, -- id in the catalogue
    hold_id VARCHAR NOT NULL, -- placed when it was asked for, resolved when it ended: joins it to `charges`
    request_id VARCHAR NOT NULL,
    parent_id VARCHAR NOT NULL, -- the Node that it continues
    parent_token BIGINT, -- after so many tokens of it; null: after all
    nodes BIGINT NOT NULL,
    path_tokens BIGINT NOT NULL, -- in front of its Nodes
    status VARCHAR NOT NULL, -- pending, running, done, failed or cancelled
    runs BIGINT NOT NULL, -- how often it was started
    failed_tries BIGINT NOT NULL, -- that were tried again
    error_code VARCHAR, -- of a failed one
    asked_at TIMESTAMP NOT NULL,
    ended_at TIMESTAMP,
);

CREATE TABLE made_nodes ( -- part of `loom_nodes`
    node_id VARCHAR NOT NULL,
    loom_id VARCHAR NOT NULL,
    branch_id VARCHAR,
    parent_id VARCHAR,
    parent_token BIGINT,
    depth BIGINT NOT NULL,
    model VARCHAR,
    tokens BIGINT,
    tokens_before BIGINT NOT NULL,
    logprob DOUBLE,
    logprob_before DOUBLE,
    finish_reason VARCHAR,
    made_at TIMESTAMP NOT NULL,
    deleted_at TIMESTAMP,
);

CREATE VIEW loom_nodes AS SELECT -- continuations, and the roots that they begin with, without any text
    node_id, -- node_…
    made_nodes.loom_id AS loom_id,
    made_nodes.parent_id AS parent_id, -- null: the root
    made_nodes.parent_token AS parent_token, -- it continues after so many tokens of its parent; null: after all
    depth, -- the root's is 0
    branch_id, -- null: the root, or imported
    hold_id, -- of its Branch: joins it to `charges`
    made_nodes.model AS model, -- id in the catalogue
    coalesce(status, 'done') AS status, -- pending, running, done, failed or cancelled
    tokens, -- its own; null until it is done
    tokens_before + tokens AS path_tokens, -- from the root to its end
    logprob, -- of its own tokens; null: not asked for
    logprob_before + logprob AS path_logprob, -- of all generated tokens to its end; null: not known of each
    finish_reason,
    made_at,
    deleted_at,
FROM made_nodes LEFT JOIN loom_branches USING (branch_id);

CREATE VIEW loom_paths AS -- the Nodes from the root to each
WITH RECURSIVE paths AS (
    SELECT node_id, loom_id, [node_id] AS path FROM made_nodes WHERE parent_id IS NULL
    UNION ALL
    SELECT made_nodes.node_id, made_nodes.loom_id, list_append(path, made_nodes.node_id)
    FROM made_nodes JOIN paths ON made_nodes.parent_id = paths.node_id
)
SELECT
    node_id,
    loom_id,
    path, -- ids, the root's first and its own last
FROM paths;

CREATE VIEW looms AS SELECT -- trees of continuations, and what they cost
    loom_id, -- loom_…
    account_id,
    key_id, -- that made it
    model, -- whose tokenizer made the root's tokens
    version, -- how many changes it has had
    coalesce(nodes, 0) AS nodes, -- that are there
    coalesce(deleted_nodes, 0) AS deleted_nodes,
    coalesce(depth, 0) AS depth, -- of its deepest Node
    coalesce(charged_tokens, 0) AS charged_tokens, -- of all its Branches
    coalesce(charged_pico_usd, 0) AS charged_pico_usd, -- 10⁻¹² dollars, exact
    created_at,
    deleted_at,
FROM planted_looms
LEFT JOIN (
    SELECT
        loom_id, count(*) FILTER (deleted_at IS NULL) AS nodes, count(deleted_at) AS deleted_nodes, max(depth) AS depth
    FROM made_nodes GROUP BY loom_id
) USING (loom_id)
LEFT JOIN (
    SELECT
        loom_id, sum(charges.charged_tokens)::BIGINT AS charged_tokens,
        sum(charges.charged_pico_usd)::BIGINT AS charged_pico_usd
    FROM loom_branches JOIN charges USING (hold_id) GROUP BY loom_id
) USING (loom_id);
