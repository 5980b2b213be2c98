-- The BLAS library that moth opens: its kernels suit the processor, a limit of addresses is read first.
local moth = require "moth"
local child = require "child"
local preload = os.getenv("LD_PRELOAD") or ""

local function blas(env)
  return child("local b = moth.config().blas print(b.path or 'none', b.version or '', b.why or '')", { env = env })
end

describe("OpenBLAS", function()
  it("has kernels for what the processor has, and keeps the choice of the user's", function()
    local path = moth.config().blas.path
    if not path or not path:find "openblas" then return pending "needs OpenBLAS" end
    if moth.cpu_level() == "generic" then return pending "needs AVX2" end
    local text = blas "env -u OPENBLAS_CORETYPE MOTH_CPU="
    assert.matches("kernels for %w+", text)
    for _, old in ipairs { "Prescott", "Core2", "Nehalem", "Generic" } do
      assert.is_nil(text:find("kernels for " .. old, 1, true), text)
    end
    assert.matches("kernels for Prescott\t", (blas "OPENBLAS_CORETYPE=Prescott"))
  end)

  it("is not opened where too few addresses are allowed: it would try for ever", function()
    if preload ~= "" then return pending "a sanitizer needs more addresses" end
    for _, kind in ipairs { "v", "d" } do
      local text, status = child([[
        local x = moth.full({ 40, 30 }, 2)
        print(x:mm(x:t()):sum():item(), x:double():mm(x:t():double()):sum():item())
        print(moth.config().blas.why)
        print(select(2, pcall(moth.linalg.inv, moth.eye(3))))]],
        { env = ("MOTH_NUM_THREADS=1; ulimit -%s 250000;"):format(kind) })
      assert.equal(0, status)
      assert.matches("^192000\t192000\nthe limit of addresses %(ulimit %-v, %-d%) leaves %d+ MB, and its first product "
        .. "takes %d+: products are slow\n[^\n]*needs LAPACK[^\n]*the limit of addresses", text)
    end
  end)
end)
