-- Device meshes on one of 8 ranks.
local moth = require "moth"
local dist = require "moth.distributed"

local function list(t) return table.concat(t, " ") end

return function(rank)
  local mesh = dist.device_mesh({ 2, 2, 2 }, { "dp", "pp", "tp" })
  local d, p, t = math.floor(rank / 4), math.floor(rank / 2) % 2, rank % 2
  assert(list(mesh:get_coordinate()) == list { d, p, t } and mesh:size() == 8 and mesh.ndim == 3)
  assert(tostring(mesh) == "DeviceMesh(dp=2, pp=2, tp=2)")
  assert(list(mesh:group("tp").ranks) == list { rank - t, rank - t + 1 })
  assert(list(mesh:get_group("dp").ranks) == list { rank % 4, rank % 4 + 4 })
  assert(mesh:rank "pp" == p and mesh:get_local_rank(1) == d and mesh.tp:rank() == t)
  local flat = mesh { "dp", "tp" }:flatten()
  assert(list(flat:group().ranks) == list { 2 * p, 2 * p + 1, 2 * p + 4, 2 * p + 5 } and tostring(flat) ==
    "DeviceMesh(dp_tp=4)" and flat:rank() == 2 * d + t)
  assert(mesh { "dp", "tp" }:flatten("x"):group() == flat:group(), "the same group again")
  assert(mesh:flatten():size() == 8 and mesh:flatten():group().size == 8)
  for dim = 1, 3 do
    local sum = moth.full({ 1 }, rank)
    dist.all_reduce(sum, { group = mesh:group(dim) })
    assert(sum:item() == 2 * rank + (1 - 2 * ({ d, p, t })[dim]) * ({ 4, 2, 1 })[dim])
  end
  local function fails(text, fn, ...)
    local ok, message = pcall(fn, ...)
    assert(not ok and message:find(text, 1, true), message)
  end
  fails("a mesh of shape [2, 3] has 6 ranks, the job has 8", dist.device_mesh, { 2, 3 })
  fails("1 names for the 2 dimensions of [2, 4]", dist.device_mesh, { 2, 4 }, { "dp" })
  fails("two dimensions are called 'dp'", dist.device_mesh, { 2, 4 }, { "dp", "dp" })
  fails("'group' is a field", dist.device_mesh, { 2, 4 }, { "dp", "group" })
  fails("there is no dimension 'cp' in DeviceMesh(dp=2, pp=2, tp=2)", function() return mesh.cp end)
  fails("in the order of", function() return mesh { "tp", "dp" } end)
  fails("say which", mesh.group, mesh)
  assert(tostring(dist.init_device_mesh("cpu", { 8 })) == "DeviceMesh(dim1=8)")
  dist.barrier()
end
