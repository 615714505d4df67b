-- New rows first: an account may be created and changed in one batch.

INSERT INTO accounts
SELECT 'acct_' || aggregate_id, name, email, 'active', NULL, NULL, happened_at FROM account_created;

UPDATE accounts SET state = changed.state
FROM (
    SELECT 'acct_' || aggregate_id AS account_id, last(state ORDER BY position) AS state
    FROM (
        SELECT aggregate_id, position, 'suspended' AS state FROM account_suspended
        UNION ALL
        SELECT aggregate_id, position, 'active' FROM account_restored
    )
    GROUP BY ALL
) AS changed
WHERE accounts.account_id = changed.account_id;

UPDATE accounts SET budget_tokens = changed.budget_tokens
FROM (
    SELECT 'acct_' || aggregate_id AS account_id, last(budget_tokens ORDER BY position) AS budget_tokens
    FROM account_budget_set
    GROUP BY ALL
) AS changed
WHERE accounts.account_id = changed.account_id;

UPDATE accounts SET spend_limit_micro_usd = changed.limit_micro_usd
FROM (
    SELECT 'acct_' || aggregate_id AS account_id, last(limit_micro_usd ORDER BY position) AS limit_micro_usd
    FROM account_spend_limit_set
    GROUP BY ALL
) AS changed
WHERE accounts.account_id = changed.account_id;
