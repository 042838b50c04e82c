-- Drop the attending lease whatever waits; 1 if items do, which are then rung for.
-- KEYS mail, attend   ARGV holder, ringing_ms
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
if redis.call('LLEN', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[2])
  return 0
end
redis.call('SET', KEYS[2], 'ringing', 'PX', ARGV[2])
return 1
