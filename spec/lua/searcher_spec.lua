-- Files of moth that an error stopped while they were loaded: the next use loads them.
local child = require "child"

describe("an error while a module is loaded", function()
  it("leaves nothing behind: a second try loads it", function()
    local text = child [[
      local failed = 0
      for n = 1, 1000 do
        local left = n
        debug.sethook(function()
          left = left - 1
          if left <= 0 and not debug.getinfo(2, "S").source:find "searcher" then debug.sethook() error "stopped" end
        end, "", 50)
        local ok, e = pcall(function() return moth.distributions.Normal(0, 1), moth.optim.Adam, moth.quantization end)
        debug.sethook()
        if ok then break end
        failed = failed + 1
        if not tostring(e):find "stopped" then print(e) end
      end
      print(failed > 20, moth.distributions.Normal(0, 1), moth.optim.Adam)]]
    assert.equal("true\tNormal(loc: 0, scale: 1)\tclass Adam\n", text)
  end)
  it("is the error itself, with the file that is wrong", function()
    local text = child [[
      package.preload["moth.helper"] = function() error("it is broken", 0) end
      print(pcall(require, "moth.helper"))
      print((select(2, pcall(require, "moth.nowhere")):match "^[^\n]+"))]]
    assert.equal("false\tit is broken\nmodule 'moth.nowhere' not found:\n", text)
  end)
end)
