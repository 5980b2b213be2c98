--- What moth.use_deterministic_algorithms(true) forbids: what has no way to give the same bits in every run. Ops of the
-- table all have one; kernels of the program's own (moth.kernel) and ops that it has defined may have none.
local B = require "moth_lua"
local check = require "moth.utils.check"

local M = {}

local warned = {} -- by name and place

--- Sets the mode. warn_only: what is not deterministic warns, once for each name and line, instead of an error.
function M.use(on, warn_only)
  local workspace = os.getenv "CUBLAS_WORKSPACE_CONFIG"
  if on and workspace and workspace ~= "" and workspace ~= ":4096:8" and workspace ~= ":16:8" then
    local text = ("CUBLAS_WORKSPACE_CONFIG=%s lets cuBLAS give other bits in each run; set it to :4096:8 or :16:8, or "
      .. "leave it out: moth sets it"):format(workspace)
    if not warn_only then check.fail("[use_deterministic_algorithms] %s", text) end
    io.stderr:write("[moth] warning: ", text, "\n")
  end
  B.cuda.deterministic(on, warn_only)
end

--- "error", "warn", or nil: not asked for.
function M.mode()
  local on, mode = B.cuda.deterministic()
  return on and mode or nil
end

--- To be called where something runs that is not deterministic. name: as in messages; why: a text that ends with what
-- to use instead.
function M.refuse(name, why)
  local mode = M.mode()
  if not mode then return end
  if mode == "error" then
    check.fail("[%s] is not deterministic, which use_deterministic_algorithms(true) demands: %s; or only warn: "
      .. "use_deterministic_algorithms(true, { warn_only = true })", name, why)
  end
  local place = B.profile.frames(1):gsub("\n.*", "")
  local key = name .. "\0" .. place
  if warned[key] then return end
  warned[key] = true
  io.stderr:write(("[moth] warning: %s: [%s] is not deterministic: %s\n"):format(place, name, why))
end

return M
