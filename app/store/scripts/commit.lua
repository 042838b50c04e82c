-- Append an event to each of several requests, if `owner` still owns it and the event starts where its tokens end.
-- Each row stands or falls alone. Returns every row's outcome, and last how many items wait in the owner's mailbox.
-- The events are published too, as one message: [[id, event], ...]. It is a hint, so that it may not be lawful to send
-- it, and a row that was committed before is not in it.
-- KEYS active, owned:<owner>, unsettled, mail; then for each row: request, events, ended
-- ARGV owner, ttl_ms, channel; then for each row: id, offset, tokens, event, stats, final status ('' goes on), finish reason,
--   error
local owner, ttl_ms, channel = ARGV[1], ARGV[2], ARGV[3]
local published = {}

local function commit(key, arg)
  local request_key, events_key, text = KEYS[key], KEYS[key + 1], ARGV[arg + 3]
  local request = redis.call('HMGET', request_key, 'status', 'owner', 'length', 'expires_ms')
  if not request[1] then return 'ended' end
  local length, offset, tokens = tonumber(request[3]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local entry = string.format('%.0f-%d', offset + tokens, tokens > 0 and 0 or 1)

  -- A caller whose reply was lost sends the same commit again and must hear that it worked.
  local function is_committed()
    if request[2] ~= owner then return false end
    local found = redis.call('XRANGE', events_key, entry, entry)
    return #found == 1 and found[1][2][2] == text
  end

  if request[1] ~= 'active' then return is_committed() and 'committed' or 'ended' end
  if request[2] ~= owner then return 'fenced' end
  if offset ~= length then return is_committed() and 'committed' or 'stale' end

  redis.call('XADD', events_key, entry, 'event', text)
  if length == 0 then redis.call('PEXPIREAT', events_key, request[4]) end
  redis.call('HSET', request_key, 'length', string.format('%.0f', offset + tokens), 'stats', ARGV[arg + 4],
    'strikes', 0)
  published[#published + 1] = '[' .. cjson.encode(ARGV[arg]) .. ',' .. text .. ']'
  if ARGV[arg + 5] ~= '' then
    local keys = {request = request_key, events = events_key, active = KEYS[1], owned = KEYS[2], unsettled = KEYS[3],
      ended = KEYS[key + 2]}
    finish(ARGV[arg], keys, ARGV[arg + 5], ARGV[arg + 6], ARGV[arg + 7], ttl_ms)
  end
  return 'committed'
end

local outcomes = {}
for row = 0, (#KEYS - 4) / 3 - 1 do
  local ok, outcome = pcall(commit, 5 + 3 * row, 4 + 8 * row)
  if not ok then
    local text = type(outcome) == 'table' and outcome.err or tostring(outcome)
    -- A server that cannot write is away: nothing is known of any row then, and all is sent again.
    for _, away in ipairs({'OOM', 'MISCONF', 'READONLY'}) do
      if string.find(text, away, 1, true) then return {err = text} end
    end
    outcome = 'failed'
  end
  outcomes[row + 1] = outcome
end
if #published > 0 then redis.pcall('PUBLISH', channel, '[' .. table.concat(published, ',') .. ']') end
outcomes[#outcomes + 1] = redis.call('LLEN', KEYS[4])
return outcomes
