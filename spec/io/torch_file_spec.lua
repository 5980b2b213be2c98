-- Archives of more than 4 GB, or of many members: zip64's fields, written into small files here.
local moth = require "moth"
local torch_file = require "moth.io.torch_file"

describe("a .pt file", function()
  local large, many = torch_file.LARGE, torch_file.MANY
  after_each(function() torch_file.LARGE, torch_file.MANY = large, many end)

  local function saved(a, b)
    local path = os.tmpname() .. ".pt"
    torch_file.LARGE, torch_file.MANY = a, b
    local state = { a = moth.arange(1000), b = moth.ones(3, 5), c = "text" }
    moth.save(state, path)
    local f = assert(io.open(path, "rb"))
    local bytes = f:read "*a"
    f:close()
    local back = moth.load(path)
    os.remove(path)
    assert.is_true(moth.equal(state.a, back.a) and moth.equal(state.b, back.b) and back.c == "text")
    return bytes:find("PK\6\6", 1, true) ~= nil
  end

  it("has zip64's fields where sizes, places or numbers of members are large, and is read", function()
    assert.is_false(saved(large, many))
    assert.is_true(saved(100, many))   -- sizes and places
    assert.is_true(saved(3000, many))  -- some of them
    assert.is_true(saved(large, 3))    -- members
  end)
end)
