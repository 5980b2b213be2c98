--- Three kinds of parallelism at once: the batch is cut (dp), the layers are on several ranks (pp), and so is each
-- weight (tp). The loss of each step is that of one process with everything.
--
--     moth run --nproc-per-node 8 examples/parallel_3d.lua
--
-- 8 processes are 2 x 2 x 2, 4 are 1 x 2 x 2, 2 are 1 x 2 x 1.
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

dist.init_process_group("gloo")
local size = dist.get_world_size()
local shapes = { [1] = { 1, 1, 1 }, [2] = { 1, 2, 1 }, [4] = { 1, 2, 2 }, [8] = { 2, 2, 2 } }
local mesh = dist.device_mesh(assert(shapes[size], "run it with 1, 2, 4 or 8 processes"), { "dp", "pp", "tp" })

local Block = nn.class("Block")
function Block:__init(width)
  self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
end
function Block:forward(x) return x + self.down(nn.functional.gelu(self.up(self.norm(x)))) end

local function blocks()
  moth.manual_seed(1)
  local list = {}
  for i = 1, 4 do list[i] = Block(16) end
  return list
end
moth.manual_seed(2)
local x = moth.randn(32, 16)
local y = x:flip(2):tanh()

local list = blocks()
for _, block in ipairs(list) do dist.tp.parallelize(block, mesh.tp, { up = "column", down = "row" }) end
local pipe = dist.pipeline(list, { mesh = mesh.pp, data_parallel = mesh.dp, microbatches = 4 })
local rows = 32 / mesh:size "dp"
local function part(t) return t:narrow(1, 1 + mesh:rank "dp" * rows, rows) end

local one = nn.Sequential(blocks())
local opt, plain = moth.optim.Adam(pipe:parameters(), { lr = 0.01 }), moth.optim.Adam(one:parameters(), { lr = 0.01 })
local worst = 0
for step = 1, 20 do
  opt:zero_grad()
  local loss = pipe:step(part(x), part(y), nn.functional.mse_loss)
  opt:step()
  dist.all_reduce(loss, { op = "avg", group = mesh:group "dp" })

  plain:zero_grad()
  local expected = nn.functional.mse_loss(one(x), y)
  expected:backward()
  plain:step()
  worst = math.max(worst, math.abs(loss:item() - expected:item()))
  if dist.get_rank() == 0 and step % 10 == 0 then
    print(("step %2d: loss %.5f, of one process %.5f"):format(step, loss:item(), expected:item()))
  end
end
assert(worst < 1e-5, worst)
print(("rank %d: dp %d, pp %d, tp %d, %d of %d weights"):format(dist.get_rank(), mesh:rank "dp", mesh:rank "pp",
  mesh:rank "tp", nn.ModuleList({ pipe }):num_parameters(), one:num_parameters()))
dist.destroy_process_group()
