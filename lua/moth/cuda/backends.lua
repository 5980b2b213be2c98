--- The backends, and their settings: moth.backends() -> { "cpu", "cuda" }; moth.backends.cuda.matmul.allow_tf32 = true.
local B = require "moth_lua"

-- A table whose fields are the settings, read and written through the binding.
local function settings(what, names, fixed)
  local function check(key)
    if not names[key] then error(("there is no setting '%s' of %s"):format(tostring(key), what), 3) end
    return names[key]
  end
  return setmetatable({}, {
    __index = function(_, key) return B.cuda_setting(check(key)) end,
    __newindex = function(_, key, value)
      local name = check(key)
      if fixed[key] then error(("%s.%s can only be read"):format(what, key), 2) end
      if type(value) ~= "boolean" then
        error(("%s.%s: expected true or false, got %s"):format(what, key, type(value)), 2)
      end
      B.cuda_setting(name, value)
    end,
  })
end

local M = {
  cuda = {
    --- Matrix products. allow_tf32 (false): float32 products on tensor cores, operands rounded to 10 bits. own_gemm
    -- (false): by moth's kernel, not by cuBLASLt. library (read-only): the library in use, after the first product.
    matmul = settings("moth.backends.cuda.matmul", { allow_tf32 = "allow_tf32", own_gemm = "own_gemm",
      library = "library" }, { library = true }),
  },
}

-- The usable devices: "cpu", "cuda" if there is one, and those of library.register_backend.
local function list()
  local names = { "cpu" }
  if B.cuda_why() == nil then names[#names + 1] = "cuda" end
  for _, name in ipairs(require("moth.library").backends) do names[#names + 1] = name end
  return names
end

local checked = require "moth.utils.signature"("backends()", list)
return setmetatable(M, { __call = function(_, ...) return (checked(...)) end })
