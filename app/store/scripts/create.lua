-- Store a new request, unless its id is known or too many are active.
-- KEYS request, active, unsettled   ARGV id, record, limit, active_ttl_ms, task ('' for none)
-- Returns {1}, {0} when known, {-1, active} when full.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if redis.call('EXISTS', KEYS[1]) == 1 then return {0} end
local active = redis.call('ZCOUNT', KEYS[2], string.format('(%.0f', now), '+inf')
if active >= tonumber(ARGV[3]) then return {-1, active} end
local expires = now + tonumber(ARGV[4])
-- First of all writes, because a server without room for it lets a script go on that has begun to write.
redis.call('HSET', KEYS[1], 'record', ARGV[2], 'status', 'active', 'owner', '', 'length', 0, 'stats', '{}',
  'strikes', 0, 'expires_ms', string.format('%.0f', expires))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, now)
redis.call('ZREMRANGEBYSCORE', KEYS[3], 0, now)
redis.call('ZADD', KEYS[2], expires, ARGV[1])
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'task', ARGV[5])
  redis.call('ZADD', KEYS[3], expires, ARGV[1])
end
return {1}
