-- A short part of `make fuzz`: programs of the fuzzers of spec/fuzz that a fixed seed makes, on the CPU, on the
-- emulation of CUDA where it is built, and with a protected page behind every block.
local build = os.getenv("MOTH_BUILD") or "build"

local function run(names, count, ...)
  local settings = { "MOTH_SEED=1 MOTH_CASES=" .. count, ... }
  local pipe = assert(io.popen(("%s luajit spec/fuzz/run.lua --build=%s -- %s 2>&1; echo $?"):format(
    table.concat(settings, " "), build, names)))
  local text = pipe:read("*a")
  pipe:close()
  assert.equal("0", text:match("(%d+)\n$"), text:sub(1, 4000))
  assert.is_truthy(text:find("0 findings"), text)
end

local function built(name)
  local f = io.open(build .. "/" .. name)
  if f then f:close() end
  return f ~= nil
end

describe("fuzzing", function()
  it("calls of ops by their schemas", function() run("calls", 3000) end)
  it("calls with a protected page behind every block", function() run("calls", 600, "MOTH_GUARD=1") end)
  it("hooks", function() run("hooks", 2400) end)
  it("damaged files", function() run("files", 1200) end)
  it("damaged models, requests, tokenizers and checkpoints: 400 of each", function() run("parsers", 400) end)
  it("calls on the emulation of CUDA", function()
    if not built("libmoth_cudaemu.so") then pending("make cudaemu: not built") end
    run("calls", 600, "MOTH_CUDA=emu", "MOTH_DEVICE=cuda")
  end)
end)
