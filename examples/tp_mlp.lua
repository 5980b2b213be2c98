--- Tensor parallelism: an MLP and an attention block cut over the ranks, beside the same on one process.
--
--     moth run --nproc-per-node 2 examples/tp_mlp.lua
local moth = require "moth"
local dist = require "moth.distributed"
local nn, tp = moth.nn, dist.tp

dist.init_process_group "gloo"
local rank, size = dist.get_rank(), dist.get_world_size()
local mesh = dist.device_mesh({ size }, { "tp" })
local function say(...) if rank == 0 then print(string.format(...)) end end
local function off(a, b) return (a - b):abs():max():item() end

moth.manual_seed(0)
local Block = nn.class("Block")
function Block:__init(width, heads)
  self.norm = nn.LayerNorm(width)
  self.attn = nn.MultiheadAttention(width, heads, { batch_first = true })
  self.ffn = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
end
function Block:forward(x)
  local h = self.norm(x)
  x = x + (self.attn(h, h, h, nil, false, nil, true, true))
  return x + self.ffn(x)
end

local one = Block(64, 8)
local cut = tp.parallelize(one:clone(), mesh.tp, { attn = "heads", ffn = "hidden" })
say("first weight of the MLP: %s on one process, %s here", tostring(one.ffn[1].weight:size()),
  tostring(cut.ffn[1].weight:size()))

local a = moth.randn(2, 16, 64):requires_grad_()
local b = a:detach():clone():requires_grad_()
local before = dist.stats().calls.all_reduce
local y, z = cut(a), one(b)
say("forward: off by %.1e, %d all_reduce", off(y, z), dist.stats().calls.all_reduce - before)
before = dist.stats().calls.all_reduce
y:pow(2):sum():backward()
z:pow(2):sum():backward()
local calls = dist.stats().calls.all_reduce - before
local relative = off(a.grad, b.grad) / b.grad:abs():max():item()
say("backward: gradient of the input off by %.1e of its largest, %d all_reduce", relative, calls)
assert(relative < 1e-5)

-- The gradients of all parts, put together, are those of one process.
local worst, of = 0, {}
for name, p in one:named_parameters() do of[name] = p.grad end
for name, p in cut:named_parameters() do
  local g = dist.full_tensor(p.grad, p)
  worst = math.max(worst, off(g, of[name]) / (1 + of[name]:abs():max():item()))
end
say("gradients of parameters: off by %.1e", worst)
assert(worst < 1e-5)

-- With the sequence cut between the layers, activations outside of them take 1 / ranks of the memory.
local seq = tp.parallelize(one:clone(), mesh.tp, { attn = "heads", ffn = "hidden", sequence = true })
local part = tp.split(a:detach(), 2, mesh.tp)
say("sequence parallel: %s of %s here, off by %.1e", tostring(part:size()), tostring(a:size()),
  off(tp.gather(seq(part), 2, mesh.tp), z))
dist.destroy_process_group()
