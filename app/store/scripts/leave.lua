-- Drop the attending lease if it is ours and no item waits.   KEYS mail, attend   ARGV holder
if redis.call('GET', KEYS[2]) ~= ARGV[1] or redis.call('LLEN', KEYS[1]) > 0 then return 0 end
return redis.call('DEL', KEYS[2])
