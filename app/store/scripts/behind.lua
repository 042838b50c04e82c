-- Find the readers that have missed something: requests with more tokens than their reader has, ended or forgotten ones.
-- KEYS requests   ARGV for each: how many tokens its reader has
-- Returns their places, from 0.
local behind = {}
for i, key in ipairs(KEYS) do
  local request = redis.call('HMGET', key, 'status', 'length')
  if request[1] ~= 'active' or tonumber(request[2]) > tonumber(ARGV[i]) then behind[#behind + 1] = i - 1 end
end
return behind
