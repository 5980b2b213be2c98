--- A hash of a text: FNV-1a, 32 bits, as an unsigned number.
local bit = require "bit"

return function(text)
  local h = 0x811c9dc5
  for i = 1, #text do
    h = bit.bxor(h, text:byte(i)) % 2 ^ 32
    h = bit.tobit(bit.lshift(h, 24) + h * 403 % 2 ^ 32) -- times 2^24 + 403: the product itself would be above 2^53
  end
  return h % 2 ^ 32
end
