-- New books

INSERT INTO ledgers
SELECT account_id, month, budget_tokens, 0, 0, 0, aggregate_id FROM ledger_created;

INSERT INTO key_ledgers
SELECT account_id, month, entry.key, entry.value, 0, 0, 0
FROM (SELECT account_id, month, unnest(map_entries(key_budgets_tokens)) AS entry FROM ledger_created);

-- Budgets that were changed in the month: the last change of each counts

CREATE TEMP TABLE changed AS
SELECT account_id, month, key_id, last(change.budget_tokens ORDER BY position) AS budget_tokens
FROM ledger_budget_changed AS change JOIN ledgers ON ledger_id = aggregate_id
GROUP BY ALL;

UPDATE ledgers SET budget_tokens = changed.budget_tokens
FROM changed
WHERE key_id IS NULL AND (ledgers.account_id, ledgers.month) = (changed.account_id, changed.month);

MERGE INTO key_ledgers USING (FROM changed WHERE key_id IS NOT NULL) AS changed USING (account_id, month, key_id)
WHEN MATCHED THEN UPDATE SET budget_tokens = changed.budget_tokens
WHEN NOT MATCHED THEN INSERT VALUES (account_id, month, key_id, changed.budget_tokens, 0, 0, 0);

DROP TABLE changed;
