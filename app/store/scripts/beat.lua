-- Heartbeat: prolong or take a node's name, unless another live process has it.
-- KEYS node, nodes, lease   ARGV kind:name, owner, node, lease_ms
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local holder = redis.call('HGET', KEYS[1], 'owner')
if holder and holder ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'node', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, now)
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[4]), ARGV[1])
redis.call('SET', KEYS[3], '1', 'PX', ARGV[4])
return 1
