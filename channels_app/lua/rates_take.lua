-- Takes from every meter of a claim, or from none. The same rules as Rates.take in core/rates.py.
--
-- KEYS  per meter: its window (a packed list of buckets {second, last_ms, requests, tokens},
--       oldest first) and its slots (a sorted set: hold id -> end of its lease).
-- ARGV  now ("" is this server's clock), hold id, and in ms lease, window and wait for a slot;
--       then per meter rpm, tpm, concurrency (0 is no limit) and the tokens to reserve.
-- Returns {1 or 0, now, meter, limit, wait_ms}, flat, followed by {requests, tokens, slots,
-- reset_ms} left in each meter (-1 is no limit). Meter and limit count from 1: rpm, tpm,
-- concurrency.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local hold = ARGV[2]
local lease, window, slot_wait = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local LAST, REQUESTS, TOKENS = 2, 3, 4

local function read_window(key)
  local packed = redis.call('GET', key)
  local meter = {buckets = {}, [REQUESTS] = 0, [TOKENS] = 0}
  for _, bucket in ipairs(packed and cmsgpack.unpack(packed) or {}) do
    if math.abs(now - bucket[LAST]) < window then
      table.insert(meter.buckets, bucket)
      meter[REQUESTS] = meter[REQUESTS] + bucket[REQUESTS]
      meter[TOKENS] = meter[TOKENS] + bucket[TOKENS]
    end
  end
  return meter
end

local function window_wait(meter, field, need, limit)
  local excess = meter[field] + need - limit
  if limit == 0 or excess <= 0 then return 0 end
  for _, bucket in ipairs(meter.buckets) do
    excess = excess - bucket[field]
    if excess <= 0 then return bucket[LAST] + window - now end
  end
  return window
end

local function add(meter)
  local second = math.floor(now / 1000)
  local newest = meter.buckets[#meter.buckets]
  if not newest or newest[1] < second then
    newest = {second, now, 0, 0}
    table.insert(meter.buckets, newest)
  end
  newest[LAST] = math.max(newest[LAST], now)
  for field, amount in pairs({[REQUESTS] = 1, [TOKENS] = meter.reserved}) do
    newest[field] = newest[field] + amount
    meter[field] = meter[field] + amount
  end
end

local meters = {}
local refused, worst_limit, worst_wait = 0, 0, 0
for i = 1, #KEYS / 2 do
  local arg = 6 + (i - 1) * 4
  local rpm, tpm, concurrency = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local has_window = rpm > 0 or tpm > 0
  local meter = has_window and read_window(KEYS[2 * i - 1]) or {buckets = {}}
  meter.has_window, meter.rpm, meter.tpm, meter.concurrency = has_window, rpm, tpm, concurrency
  meter.reserved = tonumber(ARGV[arg + 3])
  meter.held = 0
  if concurrency > 0 then
    meter.held = redis.call('ZCOUNT', KEYS[2 * i], '(' .. string.format('%d', now), '+inf')
  end
  local waits = {
    has_window and window_wait(meter, REQUESTS, 1, rpm) or 0,
    has_window and window_wait(meter, TOKENS, meter.reserved, tpm) or 0,
    concurrency > 0 and meter.held >= concurrency and slot_wait or 0,
  }
  for limit, wait in ipairs(waits) do
    if wait > worst_wait then refused, worst_limit, worst_wait = i, limit, wait end
  end
  meters[i] = meter
end

if refused == 0 then
  for i, meter in ipairs(meters) do
    if meter.has_window then
      add(meter)
      redis.call('SET', KEYS[2 * i - 1], cmsgpack.pack(meter.buckets), 'PX', window)
    end
    if meter.concurrency > 0 then
      redis.call('ZREMRANGEBYSCORE', KEYS[2 * i], '-inf', now)
      redis.call('ZADD', KEYS[2 * i], now + lease, hold)
      redis.call('PEXPIRE', KEYS[2 * i], lease)
      meter.held = meter.held + 1
    end
  end
end

local reply = {refused == 0 and 1 or 0, now, refused, worst_limit, worst_wait}
for _, meter in ipairs(meters) do
  local oldest = meter.buckets[1]
  table.insert(reply, meter.rpm > 0 and math.max(0, meter.rpm - meter[REQUESTS]) or -1)
  table.insert(reply, meter.tpm > 0 and math.max(0, meter.tpm - meter[TOKENS]) or -1)
  table.insert(reply, meter.concurrency > 0 and math.max(0, meter.concurrency - meter.held) or -1)
  table.insert(reply, oldest and oldest[LAST] + window - now or 0)
end
return reply
