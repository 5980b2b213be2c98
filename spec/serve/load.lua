-- A client under load, in a process of its own: moth spec/serve/load.lua PORT-OR-SOCKET SECONDS PATH BODY. Requests one
-- after another on one connection; prints how often each status came, and how often no answer did ("lost").
local connect = require("moth").serve.connect
local now = require("moth.utils.system").now

local port, seconds, path, body = tonumber(arg[1]) or arg[1], tonumber(arg[2]), arg[3], arg[4]
local counts, client = {}, connect(port)
local ends = now() + seconds
while now() < ends do
  local answer = client:request("POST", path, body)
  local key = answer and answer.status or "lost"
  counts[key] = (counts[key] or 0) + 1
  if not answer then
    client:close()
    require("moth.utils.system").sleep(0.01)
  end
end
for _, key in ipairs { 200, 400, 422, 429, 500, 503, "lost" } do
  if counts[key] then print(key, counts[key]) end
end
