-- kernels/math.h against libm, compiled as the kernels are, for every compute type and ISA level.

local FLAGS = "-std=gnu17 -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fwrapv "
  .. "-mprefer-vector-width=512 -Wall -Wextra -Wshadow -Wconversion -Werror"
local DIR = "build/spec/"
-- How many checks math_check.c makes: of float32 and float64, of integers.
local FLOAT_CHECKS, INT_CHECKS = 108, 11

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("*a")
  f:close()
  return text
end

-- Runs a shell command, returns its exit status and what it wrote.
local function sh(command)
  local pipe = assert(io.popen("{ unset LD_PRELOAD; " .. command .. "\n} 2>&1; echo \"status $?\""))
  local text = pipe:read("*a")
  pipe:close()
  local out, status = text:match("^(.*)status (%d+)\n$")
  return tonumber(status), out
end

local function has(command)
  return (sh("command -v " .. command .. " >/dev/null")) == 0
end

-- {name, kind, real, march, checks}
local programs = {}
local function program(kind, real, march, checks)
  local name = ("math_check_%s_%s"):format(real:gsub("[^%w]", "_"), march)
  programs[#programs + 1] = { name = name, kind = kind, real = real, march = march, checks = checks }
end
local levels = { "x86-64-v2", "x86-64-v3" }
if read("/proc/cpuinfo"):find("avx512f", 1, true) then
  levels[#levels + 1] = "x86-64-v4"
end
for _, march in ipairs(levels) do
  program(1, "float", march, FLOAT_CHECKS)
  program(2, "double", march, FLOAT_CHECKS)
end
for _, real in ipairs { "signed char", "short", "int", "long long" } do
  program(3, real, "x86-64-v2", INT_CHECKS)
end
program(4, "unsigned char", "x86-64-v2", INT_CHECKS)
program(5, "unsigned char", "x86-64-v2", INT_CHECKS)
programs[#programs].name = "math_check_bool_x86-64-v2"

describe("kernels/math.h", function()
  lazy_setup(function()
    -- two compilers at a time; one test each looks at what they said
    local script = { "mkdir -p " .. DIR }
    for i, p in ipairs(programs) do
      script[#script + 1] = ("rm -f %s%s; ${CC:-cc} %s -march=%s -DMOTH_REAL_KIND=%d '-Dreal=%s' "
        .. "spec/kernels/math_check.c -o %s%s -lm >%s%s.log 2>&1 &"):format(DIR, p.name, FLAGS,
        p.march, p.kind, p.real, DIR, p.name, DIR, p.name)
      if i % 2 == 0 then
        script[#script + 1] = "wait"
      end
    end
    script[#script + 1] = "wait"
    assert.equal(0, (sh(table.concat(script, "\n"))))
  end)

  lazy_teardown(function()
    for _, p in ipairs(programs) do
      os.remove(DIR .. p.name)
      os.remove(DIR .. p.name .. ".log")
    end
  end)

  for _, p in ipairs(programs) do
    it("is accurate and right at special values: " .. p.name, function()
      assert.equal("", read(DIR .. p.name .. ".log"))
      local status, out = sh(DIR .. p.name)
      local failed = {}
      for line in out:gmatch("[^\n]+") do
        if line:find("FAIL", 1, true) or line:find("^  ") then
          failed[#failed + 1] = line
        end
      end
      assert.equal("", table.concat(failed, "\n"))
      assert.equal(0, status)
      assert.equal(("%d checked, 0 failed"):format(p.checks), out:match("([^\n]+)\n$"))
      local _, ok = out:gsub(" OK\n", "")
      assert.equal(p.checks, ok)
    end)
  end

  it("compiles as CUDA", function()
    local nvcc = has("nvcc") and "nvcc"
      or has("/usr/local/cuda/bin/nvcc") and "/usr/local/cuda/bin/nvcc"
    if not nvcc then
      pending("no nvcc")
      return
    end
    local path = DIR .. "math_cuda.cu"
    local f = assert(io.open(path, "w"))
    f:write([[
#define MOTH_FN static __device__ __forceinline__
#include "kernels/math.h"
__global__ void kernel(const real *x, real *y) {
  int i = (int)threadIdx.x;
#if MOTH_REAL_KIND <= 2
  y[i] = m_gelu(x[i]) + m_pow(x[i], m_sin(x[i])) + m_digamma(x[i]) + m_lgamma(x[i]) +
         m_erfc(x[i]) + m_tanh(x[i]) + m_log1p(x[i]) + m_atan2(x[i], y[i]) +
         m_remainder(x[i], y[i]) + m_mish(x[i]);
#else
  y[i] = m_pow(x[i], 3) + m_div_floor(x[i], y[i]) + m_shift_right(x[i], y[i]);
#endif
}
]])
    f:close()
    for i, real in ipairs { "float", "double", "int" } do
      local status, out = sh(("%s -I. -DMOTH_REAL_KIND=%d -Dreal=%s -cubin -o %s.cubin %s"):format(
        nvcc, i, real, path, path))
      assert.equal("", out)
      assert.equal(0, status)
    end
    os.remove(path)
    os.remove(path .. ".cubin")
  end)
end)
