-- End a request from outside with a terminal event at its present length.
-- KEYS request, events, active, unsettled, ended
-- ARGV id, ttl_ms, final status, finish reason, error, error as JSON, prefix of owned, channel
-- Returns 1, 0 when it had ended, -1 when there is none.
local request = redis.call('HMGET', KEYS[1], 'status', 'owner', 'length', 'stats')
if not request[1] then return -1 end
if request[1] ~= 'active' then return 0 end
local event = '{"offset":' .. request[3] .. ',"finish_reason":"' .. ARGV[4] .. '","error":' .. ARGV[6]
  .. ',"stats":' .. request[4] .. '}'
redis.call('XADD', KEYS[2], request[3] .. '-1', 'event', event)
local keys = {request = KEYS[1], events = KEYS[2], active = KEYS[3], owned = ARGV[7] .. request[2],
  unsettled = KEYS[4], ended = KEYS[5]}
finish(ARGV[1], keys, ARGV[3], ARGV[4], ARGV[5], ARGV[2])
redis.pcall('PUBLISH', ARGV[8], '[[' .. cjson.encode(ARGV[1]) .. ',' .. event .. ']]')  -- as commit.lua does
return 1
