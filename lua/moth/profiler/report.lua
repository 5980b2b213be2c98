--- A profile as a page: timeline, flame graph, table in one HTML file. page.lua is the page.
local check = require "moth.utils.check"
local recording = require "moth.profiler.recording"
local breakdown = require "moth.profiler.breakdown"
local time = require("moth.profiler.averages").time

local M = {}

M.limit = 100000 -- events: more make the page slow; the first ones are shown, and it says so

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\" }

-- A JSON string; "<" is escaped, so that no text can end the script that it stands in.
local function quoted(text)
  local function code(c) return ("\\u%04x"):format(c:byte()) end
  return '"' .. text:gsub('["\\]', escapes):gsub("[%c<\127]", code) .. '"'
end

local function list(n, at)
  local parts = {}
  for i = 1, n do parts[i] = at(i) end
  return "[" .. table.concat(parts, ",") .. "]"
end

local parts = { "forward", "backward", "optimizer", "loader", "communication" }
local number_of = {}
for k, part in ipairs(parts) do number_of[part] = k - 1 end

local function track_text(r, t, most, names, places)
  local n, last = math.min(t.n, most), 0
  local start, length, name, parent, part, place = {}, {}, {}, {}, {}, {}
  for i = 0, n - 1 do
    local e = recording.event(t, i)
    local at = math.floor(t.start[i])
    start[i + 1] = ("%d"):format(at - last)
    length[i + 1] = ("%d"):format(math.floor(t.stop[i]) - at)
    last = at
    parent[i + 1] = ("%d"):format(t.parent[i])
    name[i + 1] = ("%d"):format(names(r:name_of(e)))
    part[i + 1] = ("%d"):format(number_of[breakdown.part(r, e)] or 0)
    local text = r:place_text(r:place_of(t, i))
    place[i + 1] = text and ("%d"):format(places(text)) or "-1"
  end
  local function column(title, values) return ('"%s":[%s]'):format(title, table.concat(values, ",")) end
  return ('{"label":"thread %d",%s}'):format(t.id, table.concat({ column("start", start), column("length", length),
    column("name", name), column("parent", parent), column("part", part), column("place", place) }, ",\n"))
end

-- A device's stream. Its times are those of kernels; phase and place are those of the calls that launched them.
local function stream_text(r, s, names, places)
  local last = 0
  local columns = { start = {}, length = {}, name = {}, parent = {}, part = {}, place = {} }
  local function put(column, text) columns[column][#columns[column] + 1] = text end
  for k = s.first, s.last do
    local w = r.work[k]
    local at = tonumber(w.start)
    put("start", ("%d"):format(at - last))
    put("length", ("%d"):format(tonumber(w.stop) - at))
    last = at
    put("name", ("%d"):format(names(r:name_of_work(w))))
    put("parent", "-1")
    local part, text = 0, nil
    if w.thread >= 0 then
      local t = r.tracks[w.thread + 1]
      local i = w.event
      while t.parent[i] >= 0 and breakdown.part(r, recording.event(t, i)) == "forward" do i = t.parent[i] end
      part = number_of[breakdown.part(r, recording.event(t, i))] or 0
      text = r:place_text(r:place_of(t, w.event))
    end
    put("part", ("%d"):format(part))
    put("place", text and ("%d"):format(places(text)) or "-1")
  end
  local texts = {}
  for _, column in ipairs { "start", "length", "name", "parent", "part", "place" } do
    texts[#texts + 1] = ('"%s":[%s]'):format(column, table.concat(columns[column], ","))
  end
  return ('{"label":"%s","device":true,%s}'):format(s.name, table.concat(texts, ",\n"))
end

-- A function that numbers texts from 0, and the list of these.
local function numbering()
  local known, texts = {}, {}
  return function(text)
    if not known[text] then
      known[text] = #texts
      texts[#texts + 1] = text
    end
    return known[text]
  end, texts
end

--- Writes the page. Returns its path.
function M.write(r, path)
  if type(path) ~= "string" then check.fail("[profiler.report] expected a path, got %s", type(path)) end
  local moth = require "moth"
  local names, name_list = numbering()
  local places, place_list = numbering()
  local tracks, left = {}, M.limit
  for _, t in ipairs(r.tracks) do
    if left > 0 and t.n > 0 then
      tracks[#tracks + 1] = track_text(r, t, left, names, places)
      left = left - t.n
    end
  end
  for _, s in ipairs(left > 0 and r:streams() or {}) do
    tracks[#tracks + 1] = stream_text(r, s, names, places)
  end
  local outside, inside = r:outside()
  local about = ("moth %s, %d threads of ops, %d events%s%s%s"):format(moth.version, moth.get_num_threads(), r:count(),
    r.device and ", " .. r:device_text() or "",
    r:count() > M.limit and (", of which the first %d are shown"):format(M.limit) or "",
    r.lost > 0 and (", %d lost behind the limit of max_events after %s"):format(r.lost, time(r.lost_since / 1e3)) or "")
  local cards = {}
  local function card(title, value) cards[#cards + 1] = ("[%s,%s]"):format(quoted(title), quoted(value)) end
  card("wall time", time(r.duration / 1e3))
  card("in ops and ranges", time(inside / 1e3))
  card("outside of them", time(outside / 1e3))
  if r.nwork > 0 then card("in kernels", time(r:device_time() / 1e3)) end
  local b = breakdown.of(r)
  for _, part in ipairs { "loader", "forward", "backward", "optimizer", "communication" } do
    if b[part] > 0 then card(part, time(b[part] * b.steps * 1e3)) end
  end
  local data = ('{"about":%s,"duration":%d,"parts":%s,"cards":[%s],"names":%s,"places":%s,\n"tracks":[%s]}'):format(
    quoted(about), r.duration, list(#parts, function(i) return quoted(parts[i]) end), table.concat(cards, ","),
    list(#name_list, function(i) return quoted(name_list[i]) end),
    list(#place_list, function(i) return quoted(place_list[i]) end), table.concat(tracks, ",\n"))
  local page = require "moth.profiler.page"
  local at = page:find("DATA</script>", 1, true)
  local f, why = io.open(path, "w")
  if not f then check.fail("[profiler.report] %s", why) end
  f:write(page:sub(1, at - 1), data, page:sub(at + 4))
  if not f:close() then check.fail("[profiler.report] '%s' could not be written", path) end
  return path
end

return M
