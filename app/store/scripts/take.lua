-- Take up to `count` items if the attending lease is ours.
-- KEYS mail, attend, mailboxes   ARGV mailbox, holder, count
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return {} end
local items = redis.call('LPOP', KEYS[1], ARGV[3]) or {}
if redis.call('LLEN', KEYS[1]) == 0 then redis.call('SREM', KEYS[3], ARGV[1]) end
return items
