-- Arguments after `--`: the model, and "stream" for a streamed answer.
function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers["Authorization"] = "Bearer sk-relay-bench-0123456789abcdef"
  local stream = args[2] == "stream" and ',"stream":true' or ""
  wrk.body = '{"model":"' .. args[1] .. '"' .. stream ..
    ',"messages":[{"role":"user","content":"' .. string.rep("x", 100) .. '"}]}'
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('RESULT {"requests": %d, "us": %d, "p50": %d, "p99": %d, "max": %d, "errors": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency.max,
    e.connect + e.read + e.write + e.status + e.timeout))
end
