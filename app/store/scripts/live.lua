-- The nodes whose heartbeat has not run out, as JSON.
-- KEYS nodes   ARGV prefix of node, prefix of members wanted
local found = {}
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(member, 1, #ARGV[2]) == ARGV[2] then
    local node = redis.call('HGET', ARGV[1] .. member, 'node')
    if node then found[#found + 1] = node end
  end
end
return found
