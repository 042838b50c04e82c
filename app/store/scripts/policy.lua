-- Replace the policy by a newer one; the same one again is no failure.   KEYS policy   ARGV version, policy
local stored = redis.call('HMGET', KEYS[1], 'version', 'policy')
if stored[2] == ARGV[2] then return 1 end
if stored[1] and tonumber(stored[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'policy', ARGV[2])
return 1
