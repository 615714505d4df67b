UPDATE platform_settings SET spend_limit_micro_usd = changed.limit_micro_usd
FROM (
    SELECT last(limit_micro_usd ORDER BY position) AS limit_micro_usd
    FROM platform_settings_spend_limit_set
    HAVING count(*) > 0
) AS changed;
