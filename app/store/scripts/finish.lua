-- Shared by commit and end: the request is over; it can be read for ttl_ms more.
local function finish(id, keys, status, reason, error, ttl_ms)
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.call('HSET', keys.request, 'status', status, 'finish_reason', reason, 'error', error,
    'ended_ms', string.format('%.0f', now))
  redis.call('PEXPIRE', keys.request, ttl_ms)
  redis.call('PEXPIRE', keys.events, ttl_ms)
  redis.call('RPUSH', keys.ended, 1)
  redis.call('PEXPIRE', keys.ended, ttl_ms)
  redis.call('ZREM', keys.active, id)
  redis.call('ZREM', keys.owned, id)
  redis.call('ZADD', keys.unsettled, 'XX', now + tonumber(ttl_ms), id)
end
