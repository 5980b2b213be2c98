--- Counts and histograms of a server, as Prometheus reads them.
local class = require "moth.class"
local tree = require "moth.lang.tree"

local SECONDS = { 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60 }
local ROWS = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024 }

local Metrics = class "Metrics"

-- name = { kind, help, buckets }; each holds values by the text of its labels.
local kinds = {
  moth_requests_total = { "counter", "Requests by model and HTTP status." },
  moth_request_seconds = { "histogram", "From the headers of a request to its answer.", SECONDS },
  moth_wait_seconds = { "histogram", "In the queue.", SECONDS },
  moth_compute_seconds = { "histogram", "In the engine: the whole batch.", SECONDS },
  moth_batch_rows = { "histogram", "Rows of the batches.", ROWS },
  moth_queue_length = { "gauge", "Requests that wait." },
  moth_lag_seconds = { "gauge", "How long the oldest request waits, or the engine says nothing." },
  moth_held_bytes = { "gauge", "Bytes of the bodies that are read or worked on." },
  moth_ready = { "gauge", "Whether the model's engine is ready." },
  moth_engine_restarts_total = { "counter", "Engines that have ended by themselves." },
  moth_tokens_total = { "counter", "Tokens of language models, in and out." },
  moth_first_token_seconds = { "histogram", "From a request to its first token.", SECONDS },
  moth_connections = { "gauge", "Open connections." },
}

function Metrics:__init()
  self.values, self.extra = {}, {}
  self.labels = {} -- texts of labels, by model and by model and status
end

local function escape(text) return (text:gsub('[\\"\n]', { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" })) end

local function series_of(self, name)
  local series = self.values[name]
  if not series then
    series = {}
    self.values[name] = series
  end
  return series
end

function Metrics:add(name, labels, n)
  local series = series_of(self, name)
  series[labels] = (series[labels] or 0) + (n or 1)
end

function Metrics:set(name, labels, value) series_of(self, name)[labels] = value end

function Metrics:observe(name, labels, value)
  local series = series_of(self, name)
  local h = series[labels]
  if not h then
    h = { sum = 0, count = 0 }
    series[labels] = h
  end
  h.sum, h.count = h.sum + value, h.count + 1
  local bounds, i = kinds[name][3], 1
  while bounds[i] and value > bounds[i] do i = i + 1 end
  h[i] = (h[i] or 0) + 1 -- the last one, beyond all bounds, is not printed
end

-- ---- what happens ------------------------------------------------------------------------------------

--- The label of a model of this server.
function Metrics:label(model)
  local own = self.labels[model]
  if not own then
    own = { text = ('model="%s"'):format(escape(model)) }
    self.labels[model] = own
  end
  return own.text
end

function Metrics:request(model, status, seconds)
  local label = self:label(model)
  local own = self.labels[model]
  if not own[status] then own[status] = ('%s,code="%d"'):format(label, status) end
  self:add("moth_requests_total", own[status])
  if seconds then self:observe("moth_request_seconds", label, seconds) end
end
function Metrics:computed(model, wait, seconds)
  self:observe("moth_wait_seconds", self:label(model), wait)
  self:observe("moth_compute_seconds", self:label(model), seconds)
end
function Metrics:batch(model, rows) self:observe("moth_batch_rows", self:label(model), rows) end
function Metrics:restart(model) self:add("moth_engine_restarts_total", self:label(model)) end
function Metrics:tokens(model, direction, n)
  self:add("moth_tokens_total", ('%s,direction="%s"'):format(self:label(model), direction), n)
end
function Metrics:first_token(model, seconds) self:observe("moth_first_token_seconds", self:label(model), seconds) end
--- What an engine of steps says of itself: { name = number }, as moth_engine_name; those that only grow end in _total.
function Metrics:gauges(model, state) self.extra[model] = state end

-- ---- text --------------------------------------------------------------------------------------------

local function number(v) return v == math.floor(v) and math.abs(v) < 1e15 and ("%d"):format(v) or ("%.9g"):format(v) end

local function histogram(lines, name, labels, h)
  local total = 0
  for i, bound in ipairs(kinds[name][3]) do
    total = total + (h[i] or 0)
    lines[#lines + 1] = ('%s_bucket{%s,le="%s"} %d'):format(name, labels, number(bound), total)
  end
  lines[#lines + 1] = ('%s_bucket{%s,le="+Inf"} %d'):format(name, labels, h.count)
  lines[#lines + 1] = ("%s_sum{%s} %s"):format(name, labels, number(h.sum))
  lines[#lines + 1] = ("%s_count{%s} %d"):format(name, labels, h.count)
end

--- The text that GET /metrics answers.
function Metrics:text()
  local lines = {}
  for _, name in ipairs(tree.keys(self.values)) do
    local kind = kinds[name]
    lines[#lines + 1] = ("# HELP %s %s"):format(name, kind[2])
    lines[#lines + 1] = ("# TYPE %s %s"):format(name, kind[1])
    for _, labels in ipairs(tree.keys(self.values[name])) do
      local value = self.values[name][labels]
      if kind[1] == "histogram" then
        histogram(lines, name, labels, value)
      else
        lines[#lines + 1] = labels == "" and ("%s %s"):format(name, number(value))
          or ("%s{%s} %s"):format(name, labels, number(value))
      end
    end
  end
  local by_gauge = {}
  for _, model in ipairs(tree.keys(self.extra)) do
    for _, key in ipairs(tree.keys(self.extra[model])) do
      local value = self.extra[model][key]
      if type(value) == "number" and type(key) == "string" and key:find "^[%w_]+$" then
        by_gauge[key] = by_gauge[key] or {}
        table.insert(by_gauge[key], ("moth_engine_%s{%s} %s"):format(key, self:label(model), number(value)))
      end
    end
  end
  for _, key in ipairs(tree.keys(by_gauge)) do
    lines[#lines + 1] = ("# HELP moth_engine_%s Of the engine itself: %s."):format(key, (key:gsub("_", " ")))
    lines[#lines + 1] = ("# TYPE moth_engine_%s %s"):format(key, key:find "_total$" and "counter" or "gauge")
    for _, line in ipairs(by_gauge[key]) do lines[#lines + 1] = line end
  end
  lines[#lines + 1] = ""
  return table.concat(lines, "\n")
end

return Metrics
