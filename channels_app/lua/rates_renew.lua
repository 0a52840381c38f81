-- Makes leases run anew from now; one that is gone (a restarted store) is entered again, as its
-- holder lives. Like Rates.renew in core/rates.py.
--
-- KEYS  the slots of each lease. ARGV  now ("" is this server's clock), lease in ms, then the
--       hold id of each lease.

local now, lease = tonumber(ARGV[1]), tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
for i, slots in ipairs(KEYS) do
  redis.call('ZADD', slots, now + lease, ARGV[2 + i])
  redis.call('PEXPIRE', slots, lease)
end
return 1
