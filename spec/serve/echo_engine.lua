-- An engine of steps without a model (moth.serve's engine.lua): it gives the words of the prompt back, one a step.
-- Prompts that begin with "!" do what the word says.
local M = {}

local Echo = {}
Echo.__index = Echo

function Echo:add(id, request)
  local text = request.prompt or request.messages[#request.messages].content
  if text == "!refuse" then error("[llm] the prompt is too long", 0) end
  if text == "!die" then os.exit(3) end
  local words = {}
  for word in text:gmatch "%S+ *" do words[#words + 1] = word end
  self.list[#self.list + 1] = { id = id, words = words, request = request, at = 0, hang = text == "!hang" }
end

function Echo:cancel(id)
  for i, r in ipairs(self.list) do
    if r.id == id then
      table.remove(self.list, i)
      self.cancelled = self.cancelled + 1
      return
    end
  end
end

function Echo:step(emit)
  require("moth.utils.system").sleep(self.pause)
  for i = #self.list, 1, -1 do
    local r = self.list[i]
    local most = math.min(#r.words, r.request.max_tokens or math.huge)
    if not r.hang then
      r.at = r.at + 1
      local last = r.at >= most
      for index = 0, r.request.n - 1 do
        emit(r.id, { index = index, text = r.words[r.at] or "", tokens = 1,
          logprobs = r.request.logprobs and { { token = r.words[r.at], logprob = -0.5,
            top = r.request.logprobs > 0 and { { "x", -1 } } or {} } },
          finish_reason = last and (most < #r.words and "length" or "stop") or nil,
          done = last and index == r.request.n - 1 or nil, prompt_tokens = #r.words, completion_tokens = r.at })
      end
      if last then table.remove(self.list, i) end
    end
  end
  return #self.list > 0
end

function Echo:state() return { running = #self.list, cancelled_total = self.cancelled } end

function M.load(options)
  return setmetatable({ list = {}, cancelled = 0, pause = options.pause or 0.001,
    signature = { platform = "moth_llm", steps = true, max_tokens = 100 } }, Echo)
end

return M
