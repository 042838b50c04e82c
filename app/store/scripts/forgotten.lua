-- Mailboxes with items that nobody attends and nobody rang for; each is marked as rung for.
-- KEYS mailboxes   ARGV ringing_ms, prefix of mail, prefix of attend
local found = {}
for _, mailbox in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if redis.call('LLEN', ARGV[2] .. mailbox) == 0 then
    redis.call('SREM', KEYS[1], mailbox)
  elseif redis.call('SET', ARGV[3] .. mailbox, 'ringing', 'NX', 'PX', ARGV[1]) then
    found[#found + 1] = mailbox
  end
end
return found
