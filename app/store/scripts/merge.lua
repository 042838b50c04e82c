-- Add what one process learnt to what all have: each sum becomes sum * kept + added. The same batch again adds nothing.
-- KEYS sums, mark of the writer   ARGV batch number, {field: [kept, added]} (JSON), most fields, ttl_ms, mark's ttl_ms
local is_new = tonumber(redis.call('GET', KEYS[2]) or '0') < tonumber(ARGV[1])
local room = tonumber(ARGV[3]) - redis.call('HLEN', KEYS[1])
local reply = {}
for field, change in pairs(cjson.decode(ARGV[2])) do
  local text = redis.call('HGET', KEYS[1], field)
  if is_new then
    local sums, kept = change[2], change[1]
    local old = text and cjson.decode(text)
    if old and #old == #sums then
      for i = 1, #sums do sums[i] = sums[i] + old[i] * kept[i] end
    end
    if not text then
      -- Names come off the wire: any other field makes room for a new one.
      if room < 1 then redis.call('HDEL', KEYS[1], redis.call('HRANDFIELD', KEYS[1])) else room = room - 1 end
    end
    text = cjson.encode(sums)
    redis.call('HSET', KEYS[1], field, text)
  end
  if text then
    reply[#reply + 1] = field
    reply[#reply + 1] = text
  end
end
redis.call('SET', KEYS[2], is_new and ARGV[1] or redis.call('GET', KEYS[2]), 'PX', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return reply
