-- Members of an index that still count, by the server's clock, which set their scores.   KEYS index
local clock = redis.call('TIME')
return redis.call('ZRANGEBYSCORE', KEYS[1], clock[1] * 1000 + math.floor(clock[2] / 1000), '+inf')
