--- Cuts a program of the fuzzer down to the lines that its finding needs.
--
--     luajit spec/fuzz/shrink.lua program.txt [text that the output must hold]
--
-- The program is what MOTH_PRINT=1 spec/fuzz/api.lua writes of an episode. It is run again and again, in processes of
-- their own with this one's environment, each time without some of its lines; what is left is printed. It is a finding
-- if the process ends with anything but 0 (and has printed the text).
local path, wanted = arg[1], arg[2]
local lines = {}
for line in io.lines(path) do if line:find("%S") then lines[#lines + 1] = line end end

local file, output = os.tmpname() .. ".txt", os.tmpname()
local function fails(list)
  local f = assert(io.open(file, "w"))
  f:write(table.concat(list, "\n"), "\n")
  f:close()
  local status = os.execute(("exec luajit spec/fuzz/api.lua %s >%s 2>&1"):format(file, output))
  if status == 0 or status == true then return false end
  for line in io.lines(output) do
    if not wanted or line:find(wanted, 1, true) then return true end
  end
end

if not fails(lines) then
  print("no finding")
  os.exit(1)
end
local part = math.ceil(#lines / 2)
while part >= 1 do
  local at, cut = 1, false
  while at <= #lines do
    local rest = {}
    for i, line in ipairs(lines) do if i < at or i >= at + part then rest[#rest + 1] = line end end
    if #rest > 0 and fails(rest) then lines, cut = rest, true else at = at + part end
  end
  if part == 1 and not cut then break end
  part = part > 1 and math.floor(part / 2) or 1
end
fails(lines)
print(table.concat(lines, "\n"))
for line in io.lines(output) do print("  " .. line:sub(1, 400)) end
os.remove(file)
os.remove(output)
