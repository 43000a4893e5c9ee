-- Whether something that was printed can no longer be read: bytes beyond the limit of a stream, or
-- events that left the log. The score of an execution that lost no event begins with its first
-- event, which has the number 2.

ALTER TABLE executions ADD COLUMN output_truncated INTEGER NOT NULL DEFAULT 0;

UPDATE executions SET output_truncated = 1
WHERE stdout_dropped > 0 OR stderr_dropped > 0
   OR (score IS NOT NULL AND score NOT LIKE '2:%' AND score NOT LIKE '0:%');
