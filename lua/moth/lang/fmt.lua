--- Numbers for people: `moth.fmt`, or `require "moth.fmt"`.
local signature = require "moth.utils.signature"
local M = {}

--- An integral number with thousands separators: `commas(269322)` is "269,322".
function M.commas(n)
  if n ~= n or n == math.huge or n == -math.huge then return tostring(n) end
  local sign, digits, rest = ("%.14g"):format(n):match("^(%-?)(%d+)(.*)$")
  if rest:find("e", 1, true) then sign, digits, rest = ("%.0f"):format(n):match("^(%-?)(%d+)(.*)$") end
  digits = digits:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
  return sign .. digits .. rest
end

--- Seconds as "0:07", "12:30" or "1:02:03".
function M.duration(seconds)
  if seconds ~= seconds or seconds == math.huge then return "?" end
  local s = math.floor(seconds + 0.5)
  local h, m = math.floor(s / 3600), math.floor(s / 60) % 60
  if h > 0 then return ("%d:%02d:%02d"):format(h, m, s % 60) end
  return ("%d:%02d"):format(m, s % 60)
end

--- A count of bytes as "812 B", "1.5 KB", "2.0 GB" (powers of 1024).
function M.bytes(n)
  local units, i = { "B", "KB", "MB", "GB", "TB", "PB" }, 1
  while math.abs(n) >= 1024 and i < #units do n, i = n / 1024, i + 1 end
  return (i == 1 and "%d %s" or "%.1f %s"):format(n, units[i])
end

return signature.all(M, { "fmt.commas(number n)", "fmt.duration(number seconds)", "fmt.bytes(number n)" })
