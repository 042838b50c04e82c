-- Append one event, if `owner` still owns the request and the event starts where its tokens end.
-- KEYS request, events, active, owned:<owner>, unsettled, ended
-- ARGV id, owner, offset, tokens, event, stats, ttl_ms, final status ('' goes on), finish reason, error
local request = redis.call('HMGET', KEYS[1], 'status', 'owner', 'length', 'expires_ms')
if not request[1] then return 'ended' end
local length, offset, tokens = tonumber(request[3]), tonumber(ARGV[3]), tonumber(ARGV[4])
local entry = string.format('%.0f-%d', offset + tokens, tokens > 0 and 0 or 1)

-- A caller whose reply was lost sends the same commit again and must hear that it worked.
local function is_committed()
  if request[2] ~= ARGV[2] then return false end
  local found = redis.call('XRANGE', KEYS[2], entry, entry)
  return #found == 1 and found[1][2][2] == ARGV[5]
end

if request[1] ~= 'active' then return is_committed() and 'committed' or 'ended' end
if request[2] ~= ARGV[2] then return 'fenced' end
if offset ~= length then return is_committed() and 'committed' or 'stale' end

redis.call('XADD', KEYS[2], entry, 'event', ARGV[5])
if length == 0 then redis.call('PEXPIREAT', KEYS[2], request[4]) end
redis.call('HSET', KEYS[1], 'length', string.format('%.0f', offset + tokens), 'stats', ARGV[6], 'strikes', 0)
if ARGV[8] ~= '' then
  local keys = {request = KEYS[1], events = KEYS[2], active = KEYS[3], owned = KEYS[4], unsettled = KEYS[5],
    ended = KEYS[6]}
  finish(ARGV[1], keys, ARGV[8], ARGV[9], ARGV[10], ARGV[7])
end
return 'committed'
