-- Claim to settle a request that is not settled.   KEYS unsettled, settle:<id>   ARGV id, ttl_ms
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
return redis.call('SET', KEYS[2], '1', 'NX', 'PX', ARGV[2]) and 1 or 0
