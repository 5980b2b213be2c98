-- The backend as nvcc builds it, on a machine that may have no GPU: it loads in milliseconds, needs no CUDA library,
-- and says why there is no device.
local build = os.getenv("MOTH_BUILD") or "build"
local library = build .. "/libmoth_cuda.so"
local luajit = os.getenv("LUAJIT") or "luajit"

local function read(command)
  local pipe = io.popen(command)
  local text = pipe:read("*a")
  pipe:close()
  return text
end

local function there()
  local f = io.open(library)
  if f then f:close() end
  return f or pending("no " .. library .. ": make cuda builds it")
end

describe("libmoth_cuda.so", function()
  it("is linked with no CUDA library and no libstdc++", function()
    if not there() then return end
    local text = read("readelf -d " .. library .. " 2>/dev/null")
    if text == "" then return pending("no readelf") end
    local needed = {}
    for name in text:gmatch("NEEDED[^%[]*%[([^%]]+)%]") do
      needed[#needed + 1] = name
      assert(name:find("^libmoth%.so") or name:find("^libc%.so") or name:find("^libm%.so") or name:find("^libdl%.so")
        or name:find("^libpthread%.so") or name:find("^librt%.so") or name:find("^libgcc_s%.so")
        or name:find("^ld%-linux"), "linked with " .. name)
    end
    assert.is_true(#needed > 0)
    assert.is_nil(text:find("TEXTREL"))
  end)

  it("loads in milliseconds and says why there is no device", function()
    if not there() then return end
    -- the best of a few: the first one reads the file from disk
    local best, why = math.huge, nil
    for _ = 1, 5 do
      local text = read("env -u MOTH_CUDA -u MOTH_DEVICE " .. luajit .. [[ -e '
        local ffi = require "ffi"
        ffi.cdef "struct spec_time { long s, ns; }; int clock_gettime(int clock, struct spec_time *t);"
        local t = ffi.new("struct spec_time")
        local function now() ffi.C.clock_gettime(1, t) return tonumber(t.s) * 1e3 + tonumber(t.ns) / 1e6 end
        local moth = require "moth"
        local start = now()
        local why = moth.cuda.why()
        print(now() - start, why)' 2>&1]])
      local ms, reason = text:match("^([%d.e-]+)%s+(.-)%s*$")
      best, why = math.min(best, tonumber(ms) or error(text)), reason
    end
    if why == "nil" then return pending("there is a device") end
    assert.matches("^no CUDA device: %S", why)
    assert(best < 20, ("opening it took %.1f ms"):format(best))
  end)
end)
