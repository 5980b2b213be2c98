--- Byte-pair merging: the pair of the best rank first, the leftmost of equal ones, until none is left. A few symbols by
-- looking at all pairs each time, more by a heap: a line of a million equal letters takes no quadratic time.
local ffi = require "ffi"
local class = require "moth.class"

local Merges = class "Merges"

local IDS = 2 ^ 20 -- above any id; key of a pair: left * IDS + right; value: rank * IDS + the merged id
local PLACES = 2 ^ 32
Merges.IDS = IDS - 1 -- how many tokens there may be
local SIMPLE = 48 -- symbols up to which all pairs are looked at

-- Workspace of all tokenizers of this Lua state, so that a tokenizer is plain data, which may go to a worker.
local work = { size = 0 }

function Merges:__init() self.table = {} end

--- Memory for n symbols, int32_t from 0.
function Merges.symbols(n)
  if n > work.size then
    work.size = math.max(n, 2 * work.size, 256)
    work.symbols, work.before = ffi.new("int32_t[?]", work.size), nil
  end
  return work.symbols
end

--- left and right become merged; of two pairs the one of the lower rank goes first.
function Merges:add(left, right, rank, merged) self.table[left * IDS + right] = rank * IDS + merged end

-- Few symbols: rounds over all pairs.
local function simple(self, n)
  local s, found = work.symbols, self.table
  while n > 1 do
    local best, place = math.huge, 0
    for k = 0, n - 2 do
      local v = found[s[k] * IDS + s[k + 1]]
      if v and v < best then best, place = v, k end
    end
    if best == math.huge then break end
    s[place] = best % IDS
    n = n - 1
    for k = place + 1, n - 1 do s[k] = s[k + 1] end
  end
  return n
end

local function sift_down(heap, at, n)
  local x = heap[at]
  while true do
    local child = 2 * at
    if child > n then break end
    if child < n and heap[child + 1] < heap[child] then child = child + 1 end
    if heap[child] >= x then break end
    heap[at], at = heap[child], child
  end
  heap[at] = x
end

local function sift_up(heap, at)
  local x = heap[at]
  while at > 1 do
    local parent = math.floor(at / 2)
    if heap[parent] <= x then break end
    heap[at], at = heap[parent], parent
  end
  heap[at] = x
end

-- Many symbols: a heap of rank * PLACES + place, whose entries may be out of date; symbols are linked.
local function by_heap(self, n)
  local s, found = work.symbols, self.table
  if not work.before then
    work.before, work.after = ffi.new("int32_t[?]", work.size), ffi.new("int32_t[?]", work.size)
    work.heap = ffi.new("double[?]", 3 * work.size + 1)
  end
  local before, after, heap, size = work.before, work.after, work.heap, 0
  local function rank_at(k)
    local v = found[s[k] * IDS + s[after[k]]]
    return v and (v - v % IDS) / IDS, v and v % IDS
  end
  for k = 0, n - 1 do before[k], after[k] = k - 1, k + 1 < n and k + 1 or -1 end
  for k = 0, n - 2 do
    local rank = rank_at(k)
    if rank then
      size = size + 1
      heap[size] = rank * PLACES + k
    end
  end
  for at = math.floor(size / 2), 1, -1 do sift_down(heap, at, size) end
  while size > 0 do
    local top = heap[1]
    heap[1] = heap[size]
    size = size - 1
    if size > 0 then sift_down(heap, 1, size) end
    local k = top % PLACES
    if s[k] >= 0 and after[k] >= 0 then
      local rank, merged = rank_at(k)
      if rank and rank == (top - k) / PLACES then
        local gone = after[k]
        s[k], s[gone] = merged, -1
        after[k] = after[gone]
        if after[k] >= 0 then
          before[after[k]] = k
          rank = rank_at(k)
          if rank then
            size = size + 1
            heap[size] = rank * PLACES + k
            sift_up(heap, size)
          end
        end
        if before[k] >= 0 then
          rank = rank_at(before[k])
          if rank then
            size = size + 1
            heap[size] = rank * PLACES + before[k]
            sift_up(heap, size)
          end
        end
      end
    end
  end
  local m = 0
  for k = 0, n - 1 do
    if s[k] >= 0 then
      s[m] = s[k]
      m = m + 1
    end
  end
  return m
end

--- Merges the first n of symbols(n): where they begin, and the number that is left.
function Merges:run(n)
  if n <= SIMPLE then return work.symbols, simple(self, n) end
  local symbols, m = work.symbols, by_heap(self, n)
  if work.size > 2 ^ 16 then work = { size = 0 } end -- a long text's memory is not kept
  return symbols, m
end

return Merges
