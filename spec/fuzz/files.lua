--- Damaged files through what reads them in Lua: the seeds of spec/fuzz/corpus and the files of PyTorch and NumPy in
-- spec/io/fixtures, moth's own checkpoints, tables of figures; with bytes changed, cut, doubled. (The parsers by
-- themselves have targets of libFuzzer, spec/fuzz/fuzz_*.c.) A source of lines for spec/fuzz/api.lua.
local lfs = require "lfs"
local moth = require "moth"
local Chance = require "fuzz.chance"

local seeds = {}
for _, folder in ipairs({ "spec/io/fixtures", "spec/fuzz/corpus/fuzz_idx", "spec/fuzz/corpus/fuzz_gunzip",
  "spec/fuzz/corpus/fuzz_safetensors", "spec/fuzz/corpus/fuzz_npy", "spec/fuzz/corpus/fuzz_zip" }) do
  for name in lfs.dir(folder) do
    local path = folder .. "/" .. name
    if lfs.attributes(path, "mode") == "file" and lfs.attributes(path, "size") < 65536 then seeds[#seeds + 1] = path end
  end
end
table.sort(seeds) -- a folder's order is not the same everywhere

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

local damages = {
  function(c, s) return s:sub(1, c:int(0, #s)) end,
  function(c, s) return s .. s:sub(c:int(0, #s)) end,
  function(c, s)
    local at = c:int(0, #s)
    return s:sub(1, at) .. string.char(c:pick({ 0, 1, 127, 128, 255, c:int(0, 255) })) .. s:sub(at + 2)
  end,
  function(c, s)
    local at = c:int(0, #s)
    return s:sub(1, at) .. s:sub(at + c:int(0, 8))
  end,
  function(c, s)
    local at, from = c:int(0, #s), c:int(0, #s)
    return s:sub(1, at) .. s:sub(from, from + c:int(0, 64)) .. s:sub(at + 1)
  end,
  function(c, s)
    local numbers = { "0", "-1", "99999999999999999999", "1e5", "7" }
    return (s:gsub("%d+", function(n) return c:one_in(4) and c:pick(numbers) or n end))
  end,
}

local path = os.tmpname()
local written = os.tmpname()
moth.save({ model = moth.nn.Linear(3, 2):state_dict(), step = 3, list = { 1, "x", true } }, written)
seeds[#seeds + 1] = written
moth.save_safetensors({ a = moth.ones(2, 3), b = moth.zeros(4, { dtype = moth.int8 }) }, path)
local own = read(path)

local readers = { "moth.load(%s)", "moth.load(%s)", "moth.load_safetensors(%s)", "moth.interop.load_npy(%s)",
  "moth.interop.load_npz(%s)", "moth.interop.load_pth(%s)", "B.load_idx(%s)", "B.load_idx(%s)",
  "moth.utils.CSVLogger(%s, {'step','loss'}):log({step=1, loss=2})", "moth.utils.JSONLLogger(%s):log({step=1})" }

return function(c, program)
  --- The path of a seed, damaged as the number says.
  function program.env.damaged(n)
    local d = Chance.new(n)
    local text = d:one_in(12) and own or d:one_in(20) and "step,loss\n1,2\n" or read(d:pick(seeds))
    for _ = 1, d:int(0, 3) do text = d:pick(damages)(d, text) end
    local f = assert(io.open(path, "wb"))
    f:write(text)
    f:close()
    return path
  end
  return ("K(1, %s)"):format(c:pick(readers):format(("damaged(%d)"):format(c:int(2 ^ 30)))), false, "file"
end
