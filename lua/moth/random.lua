--- Seeds and generators. The bits depend on seed and position only: not on threads, not on the device.
local B = require "moth_lua"
local M = {}

local methods = {}
B.Generator.__index = methods
B.Generator.__tostring = function() return "moth.Generator" end

local function seed_of(n)
  if type(n) ~= "number" or n ~= math.floor(n) or n < 0 or n > 2 ^ 53 then
    error("expected a seed from 0 to 2^53, got " .. tostring(n), 3)
  end
  return n
end

--- Sets the seed and goes back to the start.
function methods:manual_seed(n)
  B.generator_seed(self, seed_of(n))
  return self
end
--- The state as a table of four numbers; set_state takes it back.
function methods:get_state() return { B.generator_state(self) } end
function methods:set_state(state)
  if type(state) ~= "table" or #state ~= 4 then error("set_state: expected what get_state gave", 2) end
  B.generator_set_state(self, unpack(state))
  return self
end
function methods:initial_seed()
  local high, low = B.generator_state(self)
  return high * 2 ^ 32 + low
end

--- A generator of its own: moth.Generator(42); pass it as {generator = g}.
function M.Generator(seed) return B.generator(seed_of(seed or 42)) end

--- Seeds moth's default generator and Lua's math.random.
function M.manual_seed(n)
  B.generator_seed(nil, seed_of(n))
  math.randomseed(n)
end
M.seed_all = M.manual_seed

function M.get_rng_state() return { B.generator_state() } end
function M.set_rng_state(state)
  if type(state) ~= "table" or #state ~= 4 then error("set_rng_state: expected what get_rng_state gave", 2) end
  B.generator_set_state(nil, unpack(state))
end

return M
