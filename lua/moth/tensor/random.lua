--- Seeds and generators. The bits depend only on seed and position, not on threads or the device.
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local M = {}

local methods = {}
B.Generator.__index = methods
B.Generator.__tostring = function() return "moth.Generator" end

--- Sets the seed and resets the position to the start.
function methods:manual_seed(n)
  if type(n) ~= "number" or n ~= math.floor(n) or n < 0 or n > 2 ^ 53 then
    check.fail("[manual_seed] expected a seed from 0 to 2^53, got %s", tostring(n))
  end
  B.generator_seed(self, n)
  return self
end
--- The state as a table of four numbers, for set_state.
function methods:get_state() return { B.generator_state(self) } end
function methods:set_state(state)
  if type(state) ~= "table" or #state ~= 4 then error("set_state: expected what get_state gave", 2) end
  B.generator_set_state(self, unpack(state))
  return self
end
local function seed_of(generator)
  local high, low = B.generator_state(generator)
  return high * 2 ^ 32 + low
end
function methods:initial_seed() return seed_of(self) end

-- A seed that no other run has: 53 bits of the system's, as a Lua number holds them.
local function fresh()
  local f = io.open("/dev/urandom", "rb")
  local bytes = f and f:read(7)
  if f then f:close() end
  if not bytes then return require("moth.utils.system").time() * 1e6 % 2 ^ 53 end
  local n = bytes:byte(1) % 32
  for i = 2, 7 do n = n * 256 + bytes:byte(i) end
  return n
end
--- Seeds it with a number that no other run has, and returns that number.
function methods:seed()
  local n = fresh()
  B.generator_seed(self, n)
  return n
end

--- A separate generator: moth.Generator(42); pass it as {generator = g}.
M.Generator = signature("Generator(size seed=42)", function(seed) return (B.generator(seed)) end)

--- Seeds moth's default generator and Lua's math.random.
M.manual_seed = signature("manual_seed(size seed)", function(n)
  B.generator_seed(nil, n)
  math.randomseed(n)
end)
--- Seeds both with a number that no other run has, and returns that number.
M.seed = signature("seed()", function()
  local n = fresh()
  M.manual_seed(n)
  return n
end)
--- The number that moth's default generator was seeded with.
M.initial_seed = signature("initial_seed()", function() return seed_of(nil) end)
M.seed_all = signature.alias("seed_all", M.manual_seed)

--- The state of moth's generator, a list of numbers for set_rng_state.
M.get_rng_state = signature("get_rng_state()", function() return { B.generator_state() } end)
--- Sets a state of get_rng_state again: the same random numbers follow.
M.set_rng_state = signature("set_rng_state(number[] state)", function(state)
  if #state ~= 4 then check.fail("[set_rng_state] expected what get_rng_state gave, four numbers") end
  B.generator_set_state(nil, unpack(state))
end)

return M
