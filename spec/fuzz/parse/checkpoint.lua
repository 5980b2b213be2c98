--- Files of moth.save whose seal is right, though what it seals is damaged.
local B = require "moth_lua"
local moth = require "moth"
local each = require "moth.each"
local damage = require "fuzz.damage"

local seeds, path = {}, os.tmpname()
local function add(value)
  moth.save(value, path)
  local names, tensors, metadata = B.load_safetensors(path)
  for i, t in ipairs(tensors) do tensors[i] = t:clone() end
  local seed = damage.json_seed(metadata["moth.tree"])
  seed.names, seed.tensors, seed.metadata = names, tensors, metadata
  seeds[#seeds + 1] = seed
end
add { model = moth.nn.Linear(3, 2):state_dict(), step = 3, list = { 1, "x", true }, [2] = 1 / 0 }
add { a = { b = { c = moth.ones(2):to(moth.bfloat16) } }, n = 0 / 0, big = 12345678901LL, u = 7ULL, d = moth.int8,
  raw = "\255\0", z = moth.ones(2, { dtype = moth.complex64 }), [true] = false, [1.5] = "half" }
add(moth.optim.SGD({ moth.ones(2):requires_grad_() }, { lr = 0.1, momentum = 0.9 }):state_dict())
add { coo = moth.eye(3):to_sparse(), csr = moth.eye(2):to_sparse_csr(), t = moth.ones(1):requires_grad_() }
os.remove(path)

local M, current = {}, nil

function M.make(c)
  local seed = c:pick(seeds)
  local text = c:one_in(10) and damage.bytes(c, seed.text) or damage.json(c, seed, seeds)
  current = { seed = seed, format = c:one_in(30) and c:pick { "0", "2", "x", "", "1e99" } or nil,
    version = c:one_in(30) and "99.0" or nil }
  return (text:gsub("%z", "?"))
end

function M.read(bytes, running, at)
  local seed, metadata = current.seed, { { "moth.sha256", ("0"):rep(64) } }
  for key, value in each(seed.metadata) do
    if key == "moth.tree" then value = bytes end
    if key == "moth.format" then value = current.format or value end
    if key == "moth.version" then value = current.version or value end
    if key ~= "moth.sha256" then metadata[#metadata + 1] = { key, value } end
  end
  if not pcall(B.save_safetensors, at, seed.names, seed.tensors, metadata, true) then return "not written" end
  local made = moth.load(at)
  running()
  for _, v in each(type(made) == "table" and made or {}) do
    if moth.sparse.is_sparse(v) and v:dim() == 2 then v:mm(moth.ones(v:size(2), 2)) end
  end
  return "read"
end

return M
