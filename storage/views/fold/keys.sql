-- New rows first: a key may be created and changed in one batch.

INSERT INTO keys
SELECT 'key_' || aggregate_id, 'acct_' || account_id, name, prefix, 'active', NULL, happened_at FROM api_key_created;

UPDATE keys SET name = changed.name
FROM (
    SELECT 'key_' || aggregate_id AS key_id, last(name ORDER BY position) AS name
    FROM api_key_renamed
    GROUP BY ALL
) AS changed
WHERE keys.key_id = changed.key_id;

UPDATE keys SET state = changed.state
FROM (
    SELECT 'key_' || aggregate_id AS key_id, last(state ORDER BY position) AS state
    FROM (
        SELECT aggregate_id, position, 'disabled' AS state FROM api_key_disabled
        UNION ALL
        SELECT aggregate_id, position, 'active' FROM api_key_enabled
        UNION ALL
        SELECT aggregate_id, position, 'revoked' FROM api_key_revoked
    )
    GROUP BY ALL
) AS changed
WHERE keys.key_id = changed.key_id;

UPDATE keys SET budget_tokens = changed.budget_tokens
FROM (
    SELECT 'key_' || aggregate_id AS key_id, last(budget_tokens ORDER BY position) AS budget_tokens
    FROM api_key_budget_set
    GROUP BY ALL
) AS changed
WHERE keys.key_id = changed.key_id;
