-- The page of a profile, tried in a browser without a window, where there is one; and its flame graph as SVG.
local moth = require "moth"
local profiler = moth.profiler

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("*a")
  f:close()
  return text
end

local function output(command)
  local pipe = io.popen(command)
  local text = pipe:read("*a")
  pipe:close()
  return text
end

local hostile = '</script><img src=x onerror="document.title=\'broken\'"> & \t"'

local function some_profile()
  local x = moth.randn(64, 64, { requires_grad = true })
  return profiler.profile(function()
    for _ = 1, 5 do
      profiler.record_function(hostile, function() x:matmul(x):tanh():sum():backward() end)
    end
  end)
end

-- Clicks and turns the wheel as a person would, and writes what it sees into the page.
local probe = [==[
<script>
addEventListener("load", () => {
  const seen = [], say = (name, value) => seen.push(name + "=" + value), rowsOf = () =>
    [...document.querySelectorAll("#table tbody tr")].map((r) => r.children[0].textContent);
  const fire = (id, type, x, y, more) => { const c = el(id), b = c.getBoundingClientRect();
    c.dispatchEvent(new (type === "wheel" ? WheelEvent : PointerEvent)(type, Object.assign({ bubbles: true,
      clientX: b.left + x, clientY: b.top + y }, more))); };
  say("rows", rowsOf().length); say("title", document.title);
  const calls = [...head.children].find((th) => th.dataset.key === "count");
  calls.click(); const down1 = Number(document.querySelector("#table tbody tr").children[5].textContent);
  calls.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  say("sorted", down1 >= Number(document.querySelector("#table tbody tr").children[5].textContent));
  say("aria", calls.ariaSort);
  const span = to - from; fire("timeline", "wheel", 300, 30, { deltaY: -100 });
  say("zoom", ((to - from) / span).toFixed(3));
  fire("timeline", "dblclick", 300, 30); say("reset", to - from === whole);
  const named = boxes.filter((b) => D.names[tracks[b[3]].name[b[4]]] === "moth::matmul");
  const box = named.sort((a, b) => b[2] - a[2])[0], middle = box[0] + box[2] / 2 + 1;
  fire("timeline", "pointermove", middle, box[1] + 8); say("tip", el("tip").textContent.split("\n")[0]);
  fire("timeline", "click", middle, box[1] + 8); say("marked", document.querySelectorAll("tr.on").length);
  const flame = flames.find((b) => b[0].label.startsWith("<")); const before = open;
  fire("flame", "click", flame[1] + 2, flame[3] * H + 3); say("opened", open !== before && open.label.startsWith("<"));
  el("filter").value = "tanh"; el("filter").dispatchEvent(new Event("input")); say("filtered", rowsOf().join(","));
  say("images", document.querySelectorAll("img").length);
  const out = document.createElement("pre"); out.id = "seen"; out.textContent = seen.join("\n");
  document.body.append(out);
});
</script>]==]

describe("the report of a profile", function()
  it("is one file that names nothing outside of it #quick", function()
    local path = os.tmpname()
    assert.equal(path, some_profile():report(path))
    local page = read(path)
    os.remove(path)
    assert.is_nil(page:find("https?://"))
    assert.is_nil(page:find("onerror=", 1, true) and page:find("</script><img", 1, true))
    assert.truthy(page:find("moth::matmul", 1, true))
    assert.error_matches(function() some_profile():report("/no/such/folder/x.html") end, "no/such/folder")
  end)

  it("of 100,000 events is 3 MB at most; of more it says that it shows those", function()
    local x, path = moth.ones(4), os.tmpname()
    local prof = profiler.profile({ max_events = 100010 }, function()
      for _ = 1, 100020 do x:add(1):free() end
    end)
    prof:report(path)
    local page = read(path)
    os.remove(path)
    assert.is_true(#page < 3e6, #page)
    assert.matches("100010 events, of which the first 100000 are shown, 10 lost behind the limit of max_events", page)
  end)

  it("sorts, zooms, opens and filters in a browser", function()
    local browser = output("command -v chromium || command -v chromium-browser || command -v google-chrome")
      :match("^[^\n]+")
    if not browser then return pending("no chromium is installed") end
    local path = os.tmpname() .. ".html"
    some_profile():report(path)
    local page = read(path)
    local f = io.open(path, "w")
    f:write((page:gsub("</body>", function() return probe .. "</body>" end)))
    f:close()
    local dom = output(("timeout 60 %s --headless=new --no-sandbox --disable-gpu --window-size=1200,900 --dump-dom "
      .. "file://%s 2>/dev/null"):format(browser, path))
    os.remove(path)
    local text = dom:match('<pre id="seen">(.-)</pre>')
    assert.truthy(text, "the page's script has failed")
    local seen = {}
    for key, value in text:gmatch("(%w+)=([^\n]*)") do seen[key] = value end
    assert.is_true(tonumber(seen.rows) >= 8)
    assert.equal("moth profile", seen.title)
    assert.same({ "true", "ascending", "0.800", "true" }, { seen.sorted, seen.aria, seen.zoom, seen.reset })
    assert.same({ "moth::matmul", "1", "true" }, { seen.tip, seen.marked, seen.opened })
    assert.equal("moth::tanh,TanhBackward0,moth::tanh_backward", seen.filtered)
    assert.equal("0", seen.images)
  end)

  it("flame graphs are SVG that a parser reads #quick", function()
    local path = os.tmpname()
    some_profile():flame_graph(path)
    local svg = read(path)
    os.remove(path)
    assert.truthy(svg:find("^<svg xmlns"))
    assert.truthy(svg:find("<title>moth::mm: ", 1, true))
    assert.is_nil(svg:find("<img", 1, true))
    local opened = select(2, svg:gsub("<g>", "")) -- each is closed
    assert.equal(opened, select(2, svg:gsub("</g>", "")))
    assert.is_true(opened > 5)
  end)
end)
