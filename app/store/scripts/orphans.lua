-- Active requests without a live owner, the oldest first: {id, strikes, target, id, strikes, target, ...}
-- The target is that of the committed tokens, '' before the first.
-- KEYS active   ARGV count, prefix of request, prefix of lease
local found, alive = {}, {['']=false}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if #found >= 3 * tonumber(ARGV[1]) then break end
  local request = redis.call('HMGET', ARGV[2] .. id, 'status', 'owner', 'strikes', 'target', 'length')
  local owner = request[2]
  if request[1] ~= 'active' then
    redis.call('ZREM', KEYS[1], id)
  else
    if alive[owner] == nil then alive[owner] = redis.call('EXISTS', ARGV[3] .. owner) == 1 end
    if not alive[owner] then
      found[#found + 1] = id
      found[#found + 1] = request[3]
      found[#found + 1] = tonumber(request[5]) > 0 and request[4] or ''
    end
  end
end
return found
