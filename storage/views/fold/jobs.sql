-- New rows first: a Job may be submitted and end in one batch.

INSERT INTO jobs
SELECT
    'job_' || aggregate_id, account_id, key_id, model, hold_id, request_id, 'queued', 0, 0, NULL, NULL, NULL,
    happened_at, NULL, NULL, NULL
FROM job_created;

-- The last word on each column counts; arg_max passes over those that say nothing of it

CREATE TEMP TABLE job_changed AS
SELECT
    'job_' || aggregate_id AS job_id,
    arg_max(status, position) AS status,
    max(run) AS runs,
    coalesce(sum(failed_tries), 0)::BIGINT AS failed_tries,
    arg_max(http_status, position) AS http_status,
    arg_max(error_code, position) AS error_code,
    arg_max(result_bytes, position) AS result_bytes,
    arg_max(started_at, position) AS started_at,
    arg_max(finished_at, position) AS finished_at,
    arg_max(expired_at, position) AS expired_at
FROM (
    SELECT aggregate_id, position, 'running' AS status, run, happened_at AS started_at FROM job_started
    UNION ALL BY NAME
    SELECT aggregate_id, position, 'queued' AS status, 1 AS failed_tries FROM job_try_failed
    UNION ALL BY NAME
    SELECT aggregate_id, position, 'queued' AS status FROM job_interrupted
    UNION ALL BY NAME
    SELECT aggregate_id, position, 'succeeded' AS status, http_status, result_bytes, happened_at AS finished_at
    FROM job_succeeded
    UNION ALL BY NAME
    SELECT
        aggregate_id, position, 'failed' AS status, http_status, code AS error_code, result_bytes,
        happened_at AS finished_at
    FROM job_failed
    UNION ALL BY NAME
    SELECT aggregate_id, position, 'cancelled' AS status, happened_at AS finished_at FROM job_cancelled
    UNION ALL BY NAME
    SELECT aggregate_id, position, happened_at AS expired_at FROM job_result_expired
)
GROUP BY ALL;

UPDATE jobs SET
    status = coalesce(changed.status, jobs.status),
    runs = coalesce(changed.runs, jobs.runs),
    failed_tries = jobs.failed_tries + changed.failed_tries,
    http_status = coalesce(changed.http_status, jobs.http_status),
    error_code = coalesce(changed.error_code, jobs.error_code),
    result_bytes = coalesce(changed.result_bytes, jobs.result_bytes),
    started_at = coalesce(changed.started_at, jobs.started_at),
    finished_at = coalesce(changed.finished_at, jobs.finished_at),
    expired_at = changed.expired_at
FROM job_changed AS changed
WHERE jobs.job_id = changed.job_id;

DROP TABLE job_changed;
