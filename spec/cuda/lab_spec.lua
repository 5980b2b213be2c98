-- The lab on the device: the same script with --device cuda goes through the CPU's losses.
local moth = require "moth"
local luajit = os.getenv("LUAJIT") or "luajit"

local function lab(device, options)
  local path = os.tmpname()
  local pipe = assert(io.popen(("%s examples/fashion_mnist.lua --dataset digits --device %s --save %s %s 2>&1")
    :format(luajit, device, path, options)))
  local text = pipe:read("*a")
  pipe:close()
  os.remove(path)
  return text
end

describe("the lab on CUDA", function()
  it("goes through the CPU's losses", function()
    if not moth.cuda.is_available() then return pending(moth.cuda.why()) end
    local options = "--limit 640 --epochs 2"
    local cpu, cuda = lab("cpu", options), lab("cuda", options)
    assert.matches("Training on: cuda", cuda)
    local pattern = "Epoch +(%d)/2 Train Loss: ([%d.]+) Acc: ([%d.]+) Test Loss: ([%d.]+) Acc: ([%d.]+)"
    local expected, n = {}, 0
    for epoch, train, _, test in cpu:gmatch(pattern) do expected[epoch] = { tonumber(train), tonumber(test) } end
    for epoch, train, _, test in cuda:gmatch(pattern) do
      n = n + 1
      assert.near(expected[epoch][1], tonumber(train), 2e-3)
      assert.near(expected[epoch][2], tonumber(test), 2e-3)
    end
    assert.equal(2, n, cuda)
  end)
end)
