-- Small files that would expand to much: refused in milliseconds, without the memory.
local B = require "moth_lua"
local moth = require "moth"

local MB = 2 ^ 20

local function most_memory() -- in bytes
  for line in io.lines("/proc/self/status") do
    local kb = line:match("^VmHWM:%s*(%d+)")
    if kb then return tonumber(kb) * 1024 end
  end
end

local made = {}
local function write(text, suffix)
  local path = os.tmpname()
  made[#made + 1] = path
  if suffix then
    path = path .. suffix
    made[#made + 1] = path
  end
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
  return path
end
local function gzip(text) -- one member, without a name
  local path = write(text)
  local pipe = io.popen("gzip -1 -n -c " .. path)
  local out = pipe:read("*a")
  pipe:close()
  return out
end
local function big(n, bytes) -- a number as `bytes` bytes
  local out = {}
  for i = bytes - 1, 0, -1 do out[#out + 1] = string.char(math.floor(n / 256 ^ i) % 256) end
  return table.concat(out)
end
local function little(n, bytes) return big(n, bytes):reverse() end

local zeros = gzip(("\0"):rep(8 * MB))
local function idx(n) return "\0\0\8\1" .. big(n, 4) end

-- An archive of one deflated member, out of a member of gzip's.
local function archive(name, member)
  local crc, size, raw = member:sub(-8, -5), member:sub(-4), member:sub(11, -9)
  local common = little(20, 2) .. little(0, 2) .. little(8, 2) .. little(0, 4) .. crc .. little(#raw, 4) .. size
    .. little(#name, 2) .. little(0, 2)
  local local_part = "PK\3\4" .. common .. name .. raw
  local central = "PK\1\2" .. little(20, 2) .. common .. little(0, 2) .. little(0, 2) .. little(0, 2) .. little(0, 4)
    .. little(0, 4) .. name
  return local_part .. central .. "PK\5\6" .. little(0, 4) .. little(1, 2) .. little(1, 2) .. little(#central, 4)
    .. little(#local_part, 4) .. little(0, 2)
end
local function npy(n)
  local text = ("{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }"):format(n)
  text = text .. (" "):rep(63 - (10 + #text) % 64) .. "\n"
  return "\147NUMPY\1\0" .. little(#text, 2) .. text
end

local function refused(load, path, message)
  collectgarbage()
  local before, begin = most_memory(), os.clock()
  assert.error_matches(function() load(path) end, message)
  local took = os.clock() - begin
  assert.is_true(took < 0.5, "it took " .. took)
  assert.is_true(most_memory() - before < 16 * MB, "it took bytes: " .. most_memory() - before)
end

describe("a file that expands to much more than it says #noasan", function()
  teardown(function()
    for _, path in ipairs(made) do os.remove(path) end
  end)

  it("is refused by load_idx when what the header asks for is there", function()
    assert.same({ 7, 8, 9 }, B.load_idx(write(gzip(idx(3) .. "\7\8\9"))):totable())
    local halves = gzip(idx(3):sub(1, 5)) .. gzip(idx(3):sub(6)) .. gzip("\7\8\9")
    assert.same({ 7, 8, 9 }, B.load_idx(write(halves)):totable())
    assert.equal(8 * MB, B.load_idx(write(gzip(idx(8 * MB)) .. zeros)):numel())
    refused(B.load_idx, write(gzip(idx(10)) .. zeros:rep(100)), "more than the allowed 18 bytes")
    refused(B.load_idx, write(gzip(idx(2 ^ 30 - 100)) .. zeros), "compressed ones cannot hold")
    refused(B.load_idx, write(gzip(idx(2 ^ 32 - 1)) .. zeros:rep(500)), "more than the allowed 1073741824")
    refused(B.load_idx, write(zeros:rep(100)), "unknown type 0x00")
    refused(B.load_idx, write(gzip("")), "must begin with two zero bytes")
  end)

  it("is refused by load where an array in an archive is another than its header says", function()
    local good = moth.load(write(archive("a.npy", gzip(npy(3) .. "\7\8\9")), ".npz"))
    assert.same({ 7, 8, 9 }, good.a:totable())
    local bomb = archive("a.npy", gzip(npy(3) .. ("\0"):rep(24 * MB)))
    refused(moth.load, write(bomb, ".npz"), "bytes follow the array")
    refused(moth.load, write(archive("a.npy", gzip(npy(2 ^ 31) .. ("\0"):rep(24 * MB))), ".npz"), "the shape needs")
  end)
end)
