-- Take a process off the list at its clean end.   KEYS node, nodes, lease   ARGV kind:name, owner
redis.call('DEL', KEYS[3])
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
