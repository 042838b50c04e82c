-- Take up a task's message; return how many processes died holding it.
-- KEYS delivery:<id>   ARGV owner, prefix of lease, ttl_ms
local holder = redis.call('HGET', KEYS[1], 'owner')
if holder and holder ~= ARGV[1] and redis.call('EXISTS', ARGV[2] .. holder) == 0 then
  redis.call('HINCRBY', KEYS[1], 'deaths', 1)
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return tonumber(redis.call('HGET', KEYS[1], 'deaths') or 0)
