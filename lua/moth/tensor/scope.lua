--- moth.scope(fn): temporaries of fn are freed at once when it returns, not when the collector finds them.
local B = require "moth_lua"
local within = require "moth.dispatch.within"
local signature = require "moth.utils.signature"
local M = {}

local permanent = setmetatable({}, { __mode = "k" })

--- Protects a tensor from every scope (as optimizers do with state that they make at the first step).
function M.keep(t)
  permanent[t] = true
  return t
end

--- Calls fn(keep, ...) and frees every tensor that was made with `moth` ops inside and is not among its results.
-- Tensors stored elsewhere (upvalues, fields) must be protected with keep(t).
function M.scope(fn, ...)
  local kept = {}
  local function keep(t)
    kept[t] = true
    return t
  end
  local function collect(...)
    for i = 1, select("#", ...) do
      local r = select(i, ...)
      if B.is_tensor(r) then kept[r] = true end
    end
    return ...
  end
  local function finish(made)
    B.scope_end(made)
    for _, t in ipairs(made) do
      if not kept[t] and not permanent[t] then B.free(t) end
    end
  end
  return within(B.scope_begin, finish, nil, function(...) return collect(fn(...)) end, keep, ...)
end

return signature.all(M, { "scope(callable fn, ...)" })
