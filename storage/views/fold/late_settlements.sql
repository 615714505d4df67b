INSERT INTO late_settlements
SELECT hold_id, account_id, resolved_as, asked_as, prompt_tokens, completion_tokens, happened_at
FROM ledger_late_settlement_noted JOIN ledgers ON ledger_id = aggregate_id;
