--- How the CUDA devices of this machine are linked, as nvidia-smi has it: moth.cuda.topology().
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local signature = require "moth.utils.signature"

local Topology = class("CudaTopology")

local MEANING = { { "^NV", "NVLink" }, { "^PIX$", "one PCIe switch" }, { "^PXB$", "several PCIe switches" },
  { "^PHB$", "a PCIe host bridge" }, { "^NODE$", "the host bridges of one NUMA node" },
  { "^SYS$", "the link between NUMA nodes" } }

-- The rows of a matrix of nvidia-smi: [device][device] = word, by ordinal from 0.
local function matrix(text)
  local rows, columns = {}, {}
  for line in (text or ""):gsub("\27%[[%d;]*m", ""):gmatch "[^\n]+" do
    local words = {}
    for word in line:gmatch "[^\t]+" do
      word = word:match "^%s*(.-)%s*$"
      if word ~= "" then words[#words + 1] = word end
    end
    local i = (words[1] or ""):match "^GPU(%d+)$"
    if i and #columns == 0 then
      for k, word in ipairs(words) do columns[k] = tonumber(word:match "^GPU(%d+)$") end
    elseif i then
      local row = {}
      for k, j in ipairs(columns) do if j ~= tonumber(i) then row[j] = words[k + 1] end end
      rows[tonumber(i)] = row
    end
  end
  return rows
end

-- The number in nvidia-smi's lists of each device of this process.
local function physical(count)
  local list, n = {}, 0
  for word in (os.getenv "CUDA_VISIBLE_DEVICES" or ""):gmatch "[^,]+" do
    if not tonumber(word) then return nil end -- identifiers
    list[n], n = tonumber(word), n + 1
  end
  if n == 0 then for i = 0, count - 1 do list[i] = i end end
  return list
end

--- names: of the devices, by ordinal; links, peers: what `nvidia-smi topo -m` and `-p2p r` print, or nil.
function Topology:__init(names, links, peers)
  self.names, self.links, self.peers = names, {}, {}
  local at, linked, reached = physical(#names + 1) or {}, matrix(links), matrix(peers)
  for i = 0, #names do
    self.links[i], self.peers[i] = {}, {}
    for j = 0, #names do
      if i ~= j then
        self.links[i][j] = (linked[at[i]] or {})[at[j]]
        local word = (reached[at[i]] or {})[at[j]]
        if word then self.peers[i][j] = word == "OK" end
      end
    end
  end
end

function Topology:__tostring()
  local lines, used = {}, {}
  for i = 0, #self.names do
    lines[#lines + 1] = ("cuda:%d  %s"):format(i, self.names[i])
    for j = 0, #self.names do
      local link, peer = self.links[i][j], self.peers[i][j]
      if i ~= j then
        lines[#lines + 1] = ("  cuda:%d  link %s, %s"):format(j, link or "unknown",
          peer and "reads its memory" or peer == false and "copies through the host" or "access unknown")
        for _, m in ipairs(MEANING) do if (link or ""):find(m[1]) then used[link] = m[2] end end
      end
    end
  end
  for link, what in require "moth.each"(used) do lines[#lines + 1] = ("%s: %s"):format(link, what) end
  return table.concat(lines, "\n")
end

local function output(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe and pipe:read "*a"
  if pipe then pipe:close() end
  return text
end

return signature("cuda.topology()", function()
  local why = B.cuda_why()
  if why then check.fail("[cuda.topology] there is no CUDA device: %s", why) end
  local names = {}
  for i = 0, B.cuda.count() - 1 do names[i] = B.cuda.properties(i).name end
  return Topology(names, output "nvidia-smi topo -m", output "nvidia-smi topo -p2p r")
end)
