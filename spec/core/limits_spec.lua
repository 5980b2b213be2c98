-- A small machine: limits of addresses, of data, of threads. What is there goes on; nothing hangs or ends the process.
local child = require "child"

local preload = os.getenv "LD_PRELOAD" or ""

describe("a process", function()
  -- libgomp would end it where a thread cannot be started.
  it("has as many threads as can be started", function()
    if preload ~= "" then return pending "a sanitizer needs more addresses" end
    for _, limit in ipairs { "-v 60000", "-v 120000", "-v 250000", "-d 40000" } do
      local text, status = child([[
        moth.set_num_threads(64)
        local x = moth.ones(300, 300)
        print((x + x):sum():item(), x:mm(x):sum():item(), moth.get_num_threads() < 64)]], { env = ("ulimit %s;")
        :format(limit) })
      assert.equal(0, status, text)
      assert.equal("180000\t27000000\ttrue\n", text)
    end
  end)

  it("trains, loads batches in workers, saves and loads with 60 MB of addresses", function()
    if preload ~= "" then return pending "a sanitizer needs more addresses" end
    local text, status = child([[
      local nn, data, path = moth.nn, moth.data, os.tmpname()
      local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
      local opt, n = moth.optim.Adam(net:parameters()), 0
      local set = data.TensorDataset(moth.randn(32, 1, 8, 8), moth.randint(1, 11, { 32 }))
      for x, y in data.DataLoader(set, { batch_size = 8, num_workers = 2 }):iter() do
        opt:zero_grad()
        nn.functional.cross_entropy(net(x), y):backward()
        opt:step()
        n = n + 1
      end
      moth.save(net:state_dict(), path .. ".pt")
      net:load_state_dict(moth.load(path .. ".pt"))
      os.remove(path)
      os.remove(path .. ".pt")
      print(n, moth.compile(function(x) return x:sin() * 2 end)(moth.zeros(3)):sum():item())]],
      { env = "ulimit -v 60000;" })
    assert.equal(0, status, text)
    assert.equal("4\t0\n", text)
  end)
end)
