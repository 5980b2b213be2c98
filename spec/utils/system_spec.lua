local moth = require "moth"
local ffi = require "ffi"
local system = moth.utils.system

describe("moth.utils.system #quick", function()
  it("leaves clock_gettime to scripts, which declare it with a struct of theirs", function()
    local before = system.now()
    pcall(ffi.cdef, "struct spec_instant { long tv_sec, tv_nsec; };")
    pcall(ffi.cdef, "int clock_gettime(int clock, struct spec_instant *at);")
    local at = ffi.new("struct spec_instant")
    assert.equal(0, tonumber((ffi.C.clock_gettime(1, at))))
    local own = tonumber(at.tv_sec) + tonumber(at.tv_nsec) * 1e-9
    assert.is_true(before <= own and own <= system.now())
  end)
end)
