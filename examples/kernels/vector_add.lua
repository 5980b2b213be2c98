--- Adds two vectors, and tries block sizes.
local moth = require "moth"
local tl = moth.kernel.lang

local add = moth.kernel.jit(function(x_ptr, y_ptr, out_ptr, n, BLOCK)
  local offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
  local mask = offs < n
  local x = tl.load(x_ptr + offs, { mask = mask })
  local y = tl.load(y_ptr + offs, { mask = mask })
  tl.store(out_ptr + offs, x + y, { mask = mask })
end, { constexpr = { "BLOCK" }, name = "vector_add" })

-- MOTH_LOGS=autotuning prints what each takes.
local configs = { { BLOCK = 256 }, { BLOCK = 1024 }, { BLOCK = 4096 } }
local tuned = moth.kernel.autotune(add, { configs = configs, key = { "n" } })

local device = moth.cuda.is_available() and "cuda" or "cpu"
local n = moth.cli({ { "[N]", "elements", 1000000, min = 1 } }).n
local x, y = moth.randn(n):to(device), moth.randn(n):to(device)
local out = moth.empty_like(x)
tuned{ function(meta) return { moth.kernel.cdiv(n, meta.BLOCK) } end }(x, y, out, n)
moth.testing.assert_close(out, x + y)
print(("%d elements on %s: as x + y"):format(n, device))
