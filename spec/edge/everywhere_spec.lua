-- The small models of moth.models, exported, in a fresh process: the program, and the file of the edge library by its
-- code. All of them at full size, by edge-run and onnxruntime too: `make everywhere`.
local everywhere = dofile "spec/parity/everywhere.lua"

describe("every model of moth.models", function()
  it("has a recipe, and gives the same in a fresh process #M414 #M420 #slow", function()
    local folder, stems = os.tmpname() .. ".models", {}
    os.execute("mkdir -p " .. folder)
    for _, name in ipairs(everywhere.names()) do
      local net, args, dynamic = everywhere.make(name, true)
      if net and name ~= "resnet18" then -- 45 MB
        stems[#stems + 1] = folder .. "/" .. name
        everywhere.write(net, args, dynamic, stems[#stems])
      end
    end
    local pipe = io.popen(("LUA_PATH='%s' LUA_CPATH='%s' %s spec/parity/everywhere.lua --reload %s 2>&1"):format(
      package.path, package.cpath, os.getenv "LUAJIT" or "luajit", table.concat(stems, " ")))
    local said, n = pipe:read("*a"), 0
    pipe:close()
    os.execute("rm -r " .. folder)
    for program, edge in said:gmatch "reloaded (%S+) (%S+)" do
      n = n + 1
      assert.equal("0", program, said)
      assert.is_true(tonumber(edge) <= 1e-4, said) -- norms are folded: eager itself is 1e-5 off at times
    end
    assert.equal(#stems, n, said)
  end)
end)
