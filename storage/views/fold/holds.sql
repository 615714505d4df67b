-- Those placed in this batch, and how some of those that were open have ended

CREATE TEMP TABLE placed AS
SELECT
    hold_id, placed.account_id, key_id, request_id, model, kind, owner, "user" AS user_label, month,
    choices, max_tokens, prompt_tokens AS held_prompt_tokens, prompt_tokens + choices * max_tokens AS held_tokens,
    prompt_tokens * prompt_micro_usd_per_million + choices * max_tokens * completion_micro_usd_per_million
        AS held_pico_usd,
    prompt_micro_usd_per_million, completion_micro_usd_per_million, happened_at AS placed_at
FROM ledger_hold_placed AS placed JOIN ledgers ON ledger_id = aggregate_id;

CREATE TEMP TABLE outcome AS
SELECT hold_id, 'settled' AS status, prompt_tokens, completion_tokens, cost_pico_usd AS charged_pico_usd,
    NULL::VARCHAR AS release_reason, http_status, happened_at AS resolved_at
FROM ledger_hold_settled
UNION ALL
SELECT hold_id, 'released', 0, 0, 0, reason, http_status, happened_at FROM ledger_hold_released
UNION ALL
SELECT hold_id, 'expired', 0, 0, 0, NULL, NULL, happened_at FROM ledger_hold_expired;

CREATE TEMP TABLE ended AS
SELECT * FROM (FROM open_holds UNION ALL FROM placed) JOIN outcome USING (hold_id);

SELECT error('a Hold has ended that was not open')
WHERE (SELECT count(*) FROM ended) <> (SELECT count(*) FROM outcome);

INSERT INTO ended_holds FROM ended;
DELETE FROM open_holds USING outcome WHERE open_holds.hold_id = outcome.hold_id;
INSERT INTO open_holds FROM placed ANTI JOIN outcome USING (hold_id);

-- What the books and the day have in them now

CREATE TEMP TABLE moved AS
SELECT account_id, month, key_id, held_tokens, 0 AS charged_tokens, 0 AS charged_pico_usd FROM placed
UNION ALL
SELECT account_id, month, key_id, -held_tokens, prompt_tokens + completion_tokens, charged_pico_usd FROM ended;

UPDATE ledgers SET
    held_tokens = ledgers.held_tokens + moved.held_tokens,
    charged_tokens = ledgers.charged_tokens + moved.charged_tokens,
    charged_pico_usd = ledgers.charged_pico_usd + moved.charged_pico_usd
FROM (
    SELECT account_id, month, sum(COLUMNS('_tokens|_pico_usd')) FROM moved GROUP BY ALL
) AS moved
WHERE (ledgers.account_id, ledgers.month) = (moved.account_id, moved.month);

MERGE INTO key_ledgers
USING (SELECT account_id, month, key_id, sum(COLUMNS('_tokens|_pico_usd')) FROM moved GROUP BY ALL) AS moved
USING (account_id, month, key_id)
WHEN MATCHED THEN UPDATE SET
    held_tokens = key_ledgers.held_tokens + moved.held_tokens,
    charged_tokens = key_ledgers.charged_tokens + moved.charged_tokens,
    charged_pico_usd = key_ledgers.charged_pico_usd + moved.charged_pico_usd
WHEN NOT MATCHED THEN INSERT
    VALUES (account_id, month, key_id, NULL, moved.held_tokens, moved.charged_tokens, moved.charged_pico_usd);

MERGE INTO daily_usage
USING (
    SELECT
        placed_at::DATE AS day, account_id, key_id, model,
        count(*) FILTER (status = 'settled') AS requests,
        sum(prompt_tokens) AS prompt_tokens,
        sum(completion_tokens) AS completion_tokens,
        sum(prompt_tokens + completion_tokens) AS charged_tokens,
        sum(charged_pico_usd) AS charged_pico_usd,
        count(*) FILTER (status = 'released') AS released_requests,
        count(*) FILTER (status = 'expired') AS expired_requests
    FROM ended
    GROUP BY ALL
) AS ended
USING (day, account_id, key_id, model)
WHEN MATCHED THEN UPDATE SET
    requests = daily_usage.requests + ended.requests,
    prompt_tokens = daily_usage.prompt_tokens + ended.prompt_tokens,
    completion_tokens = daily_usage.completion_tokens + ended.completion_tokens,
    charged_tokens = daily_usage.charged_tokens + ended.charged_tokens,
    charged_pico_usd = daily_usage.charged_pico_usd + ended.charged_pico_usd,
    released_requests = daily_usage.released_requests + ended.released_requests,
    expired_requests = daily_usage.expired_requests + ended.expired_requests
WHEN NOT MATCHED THEN INSERT;

DROP TABLE moved;
DROP TABLE ended;
DROP TABLE outcome;
DROP TABLE placed;
