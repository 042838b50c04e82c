-- Prolong the attending lease if it is still ours.   KEYS attend   ARGV holder, lease_ms
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
