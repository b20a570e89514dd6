-- What streams are found by: one text each, under the stream's id. Inflected English words are brought to their stem.
CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize = 'porter unicode61');

-- Missions that ended before there was such a thing are found by what their reports hold, in the form of `model.lessons`:
-- the goal, how it ended, what it was about, then one lesson a line. What is no JSON is left out, not stumbled over.
INSERT INTO texts (rowid, text)
SELECT streams.id,
       replace(replace(json_extract(report, '$.directive'), char(10), ' '), char(13), ' ') || char(10)
       || coalesce(json_extract(report, '$.status'), '') || char(10)
       || replace(coalesce((SELECT group_concat(json_extract(one.value, '$.description'), '; ')
                            FROM json_each(report, '$.criteria') AS one), ''), char(10), ' ') || char(10)
       || coalesce((SELECT group_concat(one.value, char(10)) FROM json_each(report, '$.lessons') AS one), '')
FROM (
    SELECT written.stream AS stream,
           CASE WHEN json_valid(CAST(blobs.body AS TEXT)) THEN CAST(blobs.body AS TEXT) END AS report,
           max(written.seq)
    FROM events AS written
    JOIN blobs ON blobs.digest = CASE WHEN json_valid(CAST(written.body AS TEXT))
                                      THEN json_extract(CAST(written.body AS TEXT), '$.digest') END
    WHERE written.type = 'ReportWritten'
    GROUP BY written.stream
) JOIN streams ON streams.id = stream
WHERE json_type(report, '$.directive') = 'text' AND streams.kind = 'mission';
