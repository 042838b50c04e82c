-- Active requests without a live owner, the oldest first: {id, strikes, target, id, strikes, target, ...}
-- The target is that of the committed tokens, '' before the first; of each other than the live ones, one request.
-- KEYS active   ARGV count, prefix of request, prefix of lease, live targets ...
local found, alive, left_out = {}, {['']=false}, {}
local live = {['']=true}
for i = 4, #ARGV do live[ARGV[i]] = true end
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if #found >= 3 * tonumber(ARGV[1]) then break end
  local request = redis.call('HMGET', ARGV[2] .. id, 'status', 'owner', 'strikes', 'target', 'length')
  local owner = request[2]
  if request[1] ~= 'active' then
    redis.call('ZREM', KEYS[1], id)
  else
    if alive[owner] == nil then alive[owner] = redis.call('EXISTS', ARGV[3] .. owner) == 1 end
    local target = tonumber(request[5]) > 0 and request[4] or ''
    if not alive[owner] and not left_out[target] then
      left_out[target] = not live[target]
      found[#found + 1] = id
      found[#found + 1] = request[3]
      found[#found + 1] = target
    end
  end
end
return found
