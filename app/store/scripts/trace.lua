-- Add to the timelines of requests. The one that nothing was added to for longest makes room for a new one.
-- KEYS traced   ARGV now_ms, most traces, most spans, ttl_ms, prefix of trace, prefix of about,
--               [[trace, [field, value, ...], [span, ...]], ...] (JSON)
for _, item in ipairs(cjson.decode(ARGV[7])) do
  local trace, about, spans = ARGV[5] .. item[1], ARGV[6] .. item[1], item[3]
  redis.call('ZADD', KEYS[1], ARGV[1], item[1])
  if #item[2] > 0 then
    redis.call('HSET', about, unpack(item[2]))
    redis.call('PEXPIRE', about, ARGV[4])
  end
  for _, span in ipairs(spans) do redis.call('RPUSH', trace, span) end
  if #spans > 0 then
    redis.call('LTRIM', trace, -ARGV[3], -1)
    redis.call('PEXPIRE', trace, ARGV[4])
  end
end
while redis.call('ZCARD', KEYS[1]) > tonumber(ARGV[2]) do
  local oldest = redis.call('ZPOPMIN', KEYS[1])[1]
  redis.call('DEL', ARGV[5] .. oldest, ARGV[6] .. oldest)
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
