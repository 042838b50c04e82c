-- Take the attending lease if it is free, only rung for, or already ours.
-- KEYS attend   ARGV holder, lease_ms
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= 'ringing' and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
