-- A row says nothing that its events do not say: it was last changed by its last event, and the text by which a mission
-- is found is that of its last report (`schema._complete` writes it, and the `Forgotten` events of older tombstones).
UPDATE streams SET updated_at = (SELECT events.at FROM events WHERE stream = streams.id ORDER BY seq DESC LIMIT 1)
WHERE EXISTS (SELECT 1 FROM events WHERE stream = streams.id);
