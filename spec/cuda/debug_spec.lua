local moth = require "moth"
local nn = moth.nn

describe("debug.assert_same_device", function()
  if not moth.cuda.is_available() then
    pending("needs CUDA")
    return
  end

  it("names what is elsewhere #M467", function()
    local model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    moth.debug.assert_same_device(model, moth.ones(2, 4))
    assert.error_matches(function() moth.debug.assert_same_device(model, moth.ones(2, 4, { device = "cuda" })) end,
      "%[assert_same_device%] input 1 is on cuda, 0.weight on cpu; move them with :to%(device%)")
    model[3]:to("cuda")
    assert.error_matches(function() moth.debug.assert_same_device(model) end, "2.weight is on cuda, 0.weight on cpu")
    assert.error_matches(function() moth.debug.check_step { model = model } end, "2.weight is on cuda")
  end)
end)
