-- New rows first: a harvest may be submitted and end in one batch.

INSERT INTO harvests
SELECT
    'hrv_' || aggregate_id, account_id, key_id, model, hold_id, request_id, 'pending', 0, n_prompts, n_tokens, n_shards,
    layers, width, positions, max_bytes, NULL, happened_at, NULL, NULL, NULL
FROM harvest_created;

INSERT INTO harvest_shards
SELECT
    'hrv_' || aggregate_id, "number", file, "rows", bytes, sha256, prompts, tokens, forward_ms, write_ms, happened_at
FROM harvest_shard_written;

-- The last word on each column counts; arg_max passes over those that say nothing of it

CREATE TEMP TABLE harvest_changed AS
SELECT
    'hrv_' || aggregate_id AS harvest_id,
    arg_max(status, position) AS status,
    max(run) AS runs,
    arg_max(word, position) AS word,
    min(started_at) AS started_at,
    arg_max(finished_at, position) AS finished_at,
    arg_max(expired_at, position) AS expired_at
FROM (
    SELECT aggregate_id, position, 'running' AS status, run, happened_at AS started_at FROM harvest_started
    UNION ALL BY NAME
    SELECT aggregate_id, position, 'done' AS status, happened_at AS finished_at FROM harvest_done
    UNION ALL BY NAME
    SELECT aggregate_id, position, 'failed' AS status, word, happened_at AS finished_at FROM harvest_failed
    UNION ALL BY NAME
    SELECT aggregate_id, position, 'cancelled' AS status, reason AS word, happened_at AS finished_at
    FROM harvest_cancelled
    UNION ALL BY NAME
    SELECT aggregate_id, position, happened_at AS expired_at FROM harvest_files_expired
)
GROUP BY ALL;

UPDATE harvests SET
    status = coalesce(changed.status, harvests.status),
    runs = coalesce(changed.runs, harvests.runs),
    word = coalesce(changed.word, harvests.word),
    started_at = coalesce(harvests.started_at, changed.started_at),
    finished_at = coalesce(changed.finished_at, harvests.finished_at),
    expired_at = changed.expired_at
FROM harvest_changed AS changed
WHERE harvests.harvest_id = changed.harvest_id;

DROP TABLE harvest_changed;
