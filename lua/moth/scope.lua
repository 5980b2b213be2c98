--- moth.scope(fn): temporaries of fn are freed at once when it returns, not when the collector finds them.
local B = require "moth_lua"
local M = {}

local permanent = setmetatable({}, { __mode = "k" })

--- Keeps a tensor out of every scope (optimizers do so with their state, which is made at the first step).
function M.keep(t)
  permanent[t] = true
  return t
end

--- Calls fn(keep, ...) and frees every tensor that was made with `moth` ops inside and is not among its results.
-- Tensors stored elsewhere (upvalues, fields) must be protected with keep(t).
function M.scope(fn, ...)
  if type(fn) ~= "function" then error("scope: expected a function, got " .. type(fn), 2) end
  local made, kept = B.scope_begin(), {}
  local function keep(t)
    kept[t] = true
    return t
  end
  local function finish(ok, ...)
    B.scope_end(made)
    for i = 1, select("#", ...) do
      local r = select(i, ...)
      if B.is_tensor(r) then kept[r] = true end
    end
    for _, t in ipairs(made) do
      if not kept[t] and not permanent[t] then B.free(t) end
    end
    if not ok then error((...), 0) end
    return ...
  end
  return finish(pcall(fn, keep, ...))
end

return M
