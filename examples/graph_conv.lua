--- A graph convolution: the members of four clubs are told apart by who knows whom, one in ten of them labelled. Each
-- layer is a product with the sparse matrix of the graph.
--
--     moth examples/graph_conv.lua [--steps 80] [--people 400] [--curve gcn.svg] [--checkpoint gcn.mth]
local moth = require "moth"
local training = require "moth.examples.training"
local nn, F = moth.nn, moth.nn.functional
local o = training.options { steps = 80, people = 400, friends = 6, hidden = 16, lr = 0.02 }
moth.manual_seed(1)
local CLUBS = 4
local n = o.people

-- Each one knows some others, four of five of them of the same club.
local club = moth.randint(1, CLUBS + 1, { n }):totable()
local members = { {}, {}, {}, {} }
for i, c in ipairs(club) do table.insert(members[c], i) end
local from, to = {}, {}
local function edge(i, j)
  from[#from + 1], to[#to + 1] = i, j
  from[#from + 1], to[#to + 1] = j, i
end
local draw = moth.rand(n, o.friends, 2):totable()
for i = 1, n do
  edge(i, i)
  for _, r in ipairs(draw[i]) do
    local list = members[club[i]]
    edge(i, r[1] < 0.8 and list[math.ceil(r[2] * #list)] or math.ceil(r[2] * n))
  end
end

-- The matrix of the graph, each row divided by its sum: a product with it is a mean over neighbours.
local places = moth.stack({ moth.tensor(from, { dtype = moth.int64 }), moth.tensor(to, { dtype = moth.int64 }) }, 1)
local graph = moth.sparse_coo_tensor(places, moth.ones(#from), { n, n }):coalesce()
graph = (graph / moth.sparse.sum(graph, 2):to_dense():unsqueeze(2)):to_sparse_csr()

local Net = nn.class("GraphNet")
function Net:__init(features, hidden, classes)
  nn.Module.__init(self)
  self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, classes)
end
function Net:forward(x)
  local h = F.relu(moth.sparse.mm(graph, self.first(x)))
  return moth.sparse.mm(graph, self.second(h))
end

local x = moth.randn(n, 32) -- noise that tells people apart, no more
local target = moth.tensor(club, { dtype = moth.int64 })
local known = moth.arange(1, n + 1, 10):long()
local net = Net(32, o.hidden, CLUBS)
local opt = moth.optim.Adam(net:parameters(), { lr = o.lr, weight_decay = 5e-3 })
local first, last = training.run(o, { net = net, opt = opt }, function()
  opt:zero_grad()
  local loss = F.cross_entropy(net(x):index_select(1, known), target:index_select(1, known))
  loss:backward()
  opt:step()
  return loss:item()
end)

local right = moth.no_grad(function() return net(x):argmax(2):eq(target):float():mean():item() end)
print(("graph of %d people, %d edges; loss %.3f -> %.3f; told right: %.0f %%, %d of them were labelled"):format(n,
  graph:nnz(), first, last, right * 100, known:numel()))
