-- Count requests that are about to be stored against a key's bound, unless it would be passed.
-- KEYS held, active   ARGV most, reservation_ms, ttl_ms, id...
-- A member's score: until when its place is reserved though it is not active; 0 once it was stored.
-- Returns 1, or 0 when there is no room. The same call again holds the same places.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local own, others = {}, 0
for i = 4, #ARGV do own[ARGV[i]] = true end
local held = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #held, 2 do
  if not own[held[i]] then
    if tonumber(held[i + 1]) > now or redis.call('ZSCORE', KEYS[2], held[i]) then
      others = others + 1
    else
      redis.call('ZREM', KEYS[1], held[i])
    end
  end
end
if others + #ARGV - 3 > tonumber(ARGV[1]) then return 0 end
for i = 4, #ARGV do redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
