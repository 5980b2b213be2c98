--- What nginx calls: load() in each worker, after the fork; predict() for each request.
--
-- POST /predict takes images as JSON, { "inputs": [[784 numbers from 0 to 1], …] }, or as bytes, 784 of each image,
-- with the type application/octet-stream. It answers { "classes": [7, …], "probabilities": [0.98, …] }.
local ffi = require "ffi"
local json = require "cjson.safe"
local M = {}

local moth, model

--- Loads the network. After an error nginx itself goes on, and so do its other locations.
function M.load(path)
  local ok, message = pcall(function()
    moth = require "moth"
    moth.memory.set_limit(256 * 2^20) -- of this worker; a request beyond it is an error, not the end of the process
    model = require("digits").open(path)
    model(moth.zeros(1, 784)) -- what is made at the first call is made now
  end)
  if not ok then
    model = nil
    ngx.log(ngx.ERR, "no model: ", message)
  end
end

local function answer(status, value)
  ngx.status = status
  ngx.header["Content-Type"] = "application/json"
  ngx.print(json.encode(value))
  return ngx.exit(status)
end

-- (N, 784) from 0 to 1, or nil and what is wrong with the request
local function images()
  ngx.req.read_body()
  local body = ngx.req.get_body_data()
  if not body then return nil, "no body, or one above client_body_buffer_size" end
  if (ngx.var.content_type or ""):find("octet-stream", 1, true) then
    if #body % 784 ~= 0 then return nil, ("%d bytes are not images of 784"):format(#body) end
    local x = moth.empty(#body / 784, 784, { dtype = moth.uint8 })
    ffi.copy(x:data(), body, #body)
    return x:float():div_(255)
  end
  local given, message = json.decode(body)
  if not given then return nil, message end
  if type(given) ~= "table" or type(given.inputs) ~= "table" then return nil, 'expected { "inputs": [[…], …] }' end
  return moth.tensor(given.inputs)
end

--- Answers a request. Errors of moth name the op and the shapes; they are the client's to read.
function M.predict()
  if not model then return answer(503, { error = "no model; the error log says why" }) end
  local ok, result, message = pcall(function()
    local x, wrong = images()
    if not x then return nil, wrong end
    local p, class = moth.inference_mode(function() return model(x):softmax(2):max(2) end)
    return { classes = (class - 1):tolist(), probabilities = p:tolist() } -- moth's classes count from 1
  end)
  if not ok then result, message = nil, result end
  if not result then return answer(400, { error = (tostring(message):gsub("^%S+:%d+: ", "")) }) end -- not our line
  return answer(200, result)
end

return M
