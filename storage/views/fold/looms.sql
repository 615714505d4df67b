-- New rows first: all of a Loom's life may be in one batch.

INSERT INTO planted_looms
SELECT 'loom_' || aggregate_id, account_id, key_id, model, 0, happened_at, NULL FROM loom_created;

INSERT INTO loom_branches
SELECT
    branch_id, loom_id, looms.account_id, asked.key_id, asked.model, hold_id, request_id, parent_id, parent_token,
    len(node_ids), path_tokens, 'pending', 0, 0, NULL, happened_at, NULL
FROM (SELECT *, 'loom_' || aggregate_id AS loom_id FROM loom_branch_asked) AS asked
JOIN planted_looms AS looms USING (loom_id);

INSERT INTO made_nodes BY NAME
SELECT
    root_id AS node_id, 'loom_' || aggregate_id AS loom_id, 0 AS depth, model, tokens, 0 AS tokens_before,
    0.0 AS logprob, 0.0 AS logprob_before, happened_at AS made_at
FROM loom_created;

INSERT INTO made_nodes BY NAME
SELECT
    unnest(node_ids) AS node_id, 'loom_' || aggregate_id AS loom_id, branch_id, parent_id, parent_token, depth, model,
    path_tokens AS tokens_before, path_logprob AS logprob_before, happened_at AS made_at
FROM loom_branch_asked;

INSERT INTO made_nodes BY NAME
SELECT
    unnest(node_ids) AS node_id, 'loom_' || aggregate_id AS loom_id, unnest(parent_ids) AS parent_id,
    unnest(parent_tokens) AS parent_token, unnest(depths) AS depth, unnest(models) AS model, unnest(tokens) AS tokens,
    unnest(path_tokens) AS tokens_before, unnest(logprobs) AS logprob, unnest(path_logprobs) AS logprob_before,
    unnest(finish_reasons) AS finish_reason, happened_at AS made_at
FROM loom_nodes_imported;

-- What became of them

UPDATE made_nodes SET tokens = grown.tokens, logprob = grown.logprob, finish_reason = grown.finish_reason
FROM (
    SELECT
        unnest(node_ids) AS node_id, unnest(tokens) AS tokens, unnest(logprobs) AS logprob,
        unnest(finish_reasons) AS finish_reason
    FROM loom_branch_grown
) AS grown
WHERE made_nodes.node_id = grown.node_id;

UPDATE made_nodes SET deleted_at = deleted.happened_at
FROM (
    SELECT 'loom_' || aggregate_id AS loom_id, unnest(node_ids) AS node_id, happened_at FROM loom_nodes_deleted
) AS deleted
WHERE made_nodes.node_id = deleted.node_id;

UPDATE made_nodes SET deleted_at = coalesce(made_nodes.deleted_at, deleted.happened_at)
FROM loom_deleted AS deleted
WHERE made_nodes.loom_id = 'loom_' || deleted.aggregate_id;

-- The last word on each column counts; arg_max passes over those that say nothing of it

CREATE TEMP TABLE branch_changed AS
SELECT
    branch_id,
    arg_max(status, position) AS status,
    max(run) AS runs,
    coalesce(sum(failed_tries), 0)::BIGINT AS failed_tries,
    arg_max(error_code, position) AS error_code,
    arg_max(ended_at, position) AS ended_at
FROM (
    SELECT branch_id, position, 'running' AS status, run FROM loom_branch_started
    UNION ALL BY NAME
    SELECT branch_id, position, 'pending' AS status, 1 AS failed_tries FROM loom_branch_try_failed
    UNION ALL BY NAME
    SELECT branch_id, position, 'pending' AS status FROM loom_branch_interrupted
    UNION ALL BY NAME
    SELECT branch_id, position, 'done' AS status, happened_at AS ended_at FROM loom_branch_grown
    UNION ALL BY NAME
    SELECT branch_id, position, 'failed' AS status, code AS error_code, happened_at AS ended_at FROM loom_branch_failed
    UNION ALL BY NAME
    SELECT branch_id, position, 'cancelled' AS status, happened_at AS ended_at FROM loom_branch_cancelled
)
GROUP BY ALL;

UPDATE loom_branches SET
    status = coalesce(changed.status, loom_branches.status),
    runs = coalesce(changed.runs, loom_branches.runs),
    failed_tries = loom_branches.failed_tries + changed.failed_tries,
    error_code = coalesce(changed.error_code, loom_branches.error_code),
    ended_at = coalesce(changed.ended_at, loom_branches.ended_at)
FROM branch_changed AS changed
WHERE loom_branches.branch_id = changed.branch_id;

DROP TABLE branch_changed;

UPDATE planted_looms SET
    version = version + changes.events,
    deleted_at = coalesce(planted_looms.deleted_at, changes.deleted_at)
FROM (
    SELECT 'loom_' || aggregate_id AS loom_id, count(*) AS events, max(deleted_at) AS deleted_at
    FROM (
        SELECT aggregate_id, NULL::TIMESTAMP AS deleted_at FROM loom_created
        UNION ALL BY NAME SELECT aggregate_id FROM loom_titled
        UNION ALL BY NAME SELECT aggregate_id FROM loom_nodes_imported
        UNION ALL BY NAME SELECT aggregate_id FROM loom_branch_asked
        UNION ALL BY NAME SELECT aggregate_id FROM loom_branch_started
        UNION ALL BY NAME SELECT aggregate_id FROM loom_branch_try_failed
        UNION ALL BY NAME SELECT aggregate_id FROM loom_branch_interrupted
        UNION ALL BY NAME SELECT aggregate_id FROM loom_branch_grown
        UNION ALL BY NAME SELECT aggregate_id FROM loom_branch_failed
        UNION ALL BY NAME SELECT aggregate_id FROM loom_branch_cancelled
        UNION ALL BY NAME SELECT aggregate_id FROM loom_nodes_deleted
        UNION ALL BY NAME SELECT aggregate_id, happened_at AS deleted_at FROM loom_deleted
    )
    GROUP BY aggregate_id
) AS changes
WHERE planted_looms.loom_id = changes.loom_id;
