-- Give an active request to a verifier, unless another live one has it, or another target began it.
-- KEYS request, owned:<owner>   ARGV id, owner, active_ttl_ms, prefix of owned, prefix of lease, target
-- The keys of the previous owner are not known before the call, hence the prefixes.
local request = redis.call('HMGET', KEYS[1], 'status', 'owner', 'expires_ms', 'target', 'length')
local previous, target = request[2], request[4] or ''
if request[1] ~= 'active' then return 0 end
if target ~= '' and target ~= ARGV[6] and tonumber(request[5]) > 0 then return 0 end
if previous ~= '' and previous ~= ARGV[2] then
  if redis.call('EXISTS', ARGV[5] .. previous) == 1 then return 0 end
  redis.call('HINCRBY', KEYS[1], 'strikes', 1)
  redis.call('ZREM', ARGV[4] .. previous, ARGV[1])
end
redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'target', ARGV[6])
redis.call('ZADD', KEYS[2], request[3], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
