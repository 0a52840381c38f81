-- Frees the slots of a hold and corrects what it reserved. Like Rates.end in core/rates.py.
--
-- KEYS  per meter: its window and its slots. ARGV  hold id, the second in which it was taken,
--       change of requests; then per meter the change of tokens.
-- A bucket that has left the window is not made again.

local hold, second, requests = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

for i = 1, #KEYS / 2 do
  local window, slots = KEYS[2 * i - 1], KEYS[2 * i]
  local tokens = tonumber(ARGV[3 + i])
  redis.call('ZREM', slots, hold)
  local packed = (requests ~= 0 or tokens ~= 0) and redis.call('GET', window)
  if packed then
    local buckets = cmsgpack.unpack(packed)
    for at, bucket in ipairs(buckets) do
      if bucket[1] == second then
        bucket[3] = math.max(0, bucket[3] + requests)
        bucket[4] = math.max(0, bucket[4] + tokens)
        if bucket[3] == 0 and bucket[4] == 0 then table.remove(buckets, at) end
        break
      end
    end
    if #buckets > 0 then
      redis.call('SET', window, cmsgpack.pack(buckets), 'KEEPTTL')
    else
      redis.call('DEL', window)
    end
  end
end
return 1
