-- Tell who waits for a Celery task how far its request is, unless that has ended.
-- KEYS request, the task's result   ARGV text, ttl_s
if redis.call('HGET', KEYS[1], 'status') ~= 'active' then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2])
redis.call('PUBLISH', KEYS[2], ARGV[1])
return 1
