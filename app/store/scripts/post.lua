-- Put items into a mailbox; 1 if nobody attends it and nobody rang, so that the caller must.
-- KEYS mail, attend, mailboxes   ARGV mailbox, ringing_ms, mail_ttl_ms, most items, item, item, ...
local waiting = 0
for i = 5, #ARGV do waiting = redis.call('RPUSH', KEYS[1], ARGV[i]) end
-- A mailbox that nobody empties forgets its oldest items: they are hints.
if waiting > tonumber(ARGV[4]) then redis.call('LTRIM', KEYS[1], -ARGV[4], -1) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('SADD', KEYS[3], ARGV[1])
return redis.call('SET', KEYS[2], 'ringing', 'NX', 'PX', ARGV[2]) and 1 or 0
