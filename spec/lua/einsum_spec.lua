-- moth.einsum against elementwise products and sums, for equations of random letters. Plans are kept by equation, so
-- each is asked twice with other sizes.
local moth = require "moth"

local names = { "a", "b", "c", "d", "e" }

-- The sum of products over all letters, one dimension for each.
local function plain(terms, result, list)
  local all, at = {}, {}
  for _, term in ipairs(terms) do
    for l in term:gmatch "." do
      if not at[l] then all[#all + 1], at[l] = l, #all + 1 end
    end
  end
  local product
  for i, t in ipairs(list) do
    local term, shape, order = terms[i], {}, {}
    for d = 1, #all do
      shape[d] = 1
      local place = term:find(all[d], 1, true)
      if place then order[#order + 1], shape[d] = place, t:size(place) end
    end
    if #order > 1 then t = t:permute(order) end
    t = t:reshape(shape)
    product = product and product * t or t
  end
  local sums, order, left = {}, {}, {}
  for d, l in ipairs(all) do
    if result:find(l, 1, true) then left[#left + 1] = l else sums[#sums + 1] = d end
  end
  if #sums > 0 then product = product:sum(sums) end
  for i = 1, #result do
    for d, l in ipairs(left) do if l == result:sub(i, i) then order[i] = d end end
  end
  return #order > 1 and product:permute(order) or product
end

describe("einsum", function()
  it("is the sum of products, for random letters, orders and sizes", function()
    moth.manual_seed(11)
    local function number(n) return moth.randint(1, n + 1, { 1 }):item() end
    local function shuffled(list)
      local out = { unpack(list) }
      for i = #out, 2, -1 do
        local j = number(i)
        out[i], out[j] = out[j], out[i]
      end
      return out
    end
    for case = 1, 120 do
      local terms, seen = {}, {}
      for i = 1, number(3) do
        local letters = shuffled(names)
        terms[i] = table.concat(letters, "", 1, number(4))
        for l in terms[i]:gmatch "." do seen[l] = true end
      end
      local result = {}
      for _, l in ipairs(shuffled(names)) do if seen[l] and number(2) == 1 then result[#result + 1] = l end end
      result = table.concat(result)
      local equation = table.concat(terms, ",") .. "->" .. result
      for turn = 1, 2 do
        local size, list, inputs = {}, {}, {}
        for _, l in ipairs(names) do size[l] = number(4) + turn - 1 end
        for i, term in ipairs(terms) do
          local shape = {}
          for l in term:gmatch "." do shape[#shape + 1] = number(6) == 1 and 1 or size[l] end
          list[i] = moth.randn(shape, { dtype = moth.float64 })
          inputs[i] = list[i]:detach():clone():requires_grad_(true)
        end
        local want, got = plain(terms, result, list), moth.einsum(equation, unpack(inputs))
        assert.are.same(want:size(), got:size(), equation)
        assert.is_true(moth.allclose(got, want, 1e-10, 1e-10), equation .. ", case " .. case)
        local again = {}
        for i, t in ipairs(list) do again[i] = t:detach():clone():requires_grad_(true) end
        got:sum():backward()
        plain(terms, result, again):sum():backward()
        for i, t in ipairs(inputs) do
          assert.is_true(moth.allclose(t.grad, again[i].grad, 1e-10, 1e-10), equation .. ", gradient")
        end
      end
    end
  end)

  it("takes diagonals, dots and integers, more than once", function()
    for n = 2, 3 do
      local x, y = moth.randn(4, n, n), moth.randn(n, 4)
      assert.is_true(moth.allclose(moth.einsum("bii->b", x), x:diagonal(0, 2, 3):sum(2)))
      assert.is_true(moth.allclose(moth.einsum("...ij,jk->...ik", x, y), x:matmul(y)))
      assert.is_true(moth.allclose(moth.einsum("ij", y), y))
      local i = moth.randint(-9, 10, { n, 5 }):int()
      assert.is_true(moth.equal(moth.einsum("ab,cb->ac", i, i), i:long():mm(i:long().T)))
      assert.are.equal("int32", moth.einsum("ab,c->abc", i, i:select(1, 1)):dtype().name)
      assert.are.equal(0, moth.einsum("ij,jk->", moth.zeros(n, 0), moth.zeros(0, 2)):item())
    end
    assert.error_matches(function() moth.einsum("ij,jk->ik", moth.zeros(2, 3), moth.zeros(4, 2)) end,
      "'j' stands for dimensions of 3 and of 4 elements")
    assert.error_matches(function() moth.einsum("ij,jk->ik", moth.zeros(2, 3), moth.zeros(4)) end, "names 2 dimensions")
  end)
end)
