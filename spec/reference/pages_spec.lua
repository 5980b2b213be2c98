-- The reference as HTML: a page for each op, links that lead somewhere, the words of `?name`, a search that finds.
local moth = require "moth"
local pages = require "moth.reference.pages"
local entry = require "moth.reference.entry"
local collect = require "moth.reference.collect"
local links = require "moth.reference.links"
local html = require "moth.reference.html"

local function succeeds(command) return os.execute(command .. " >/dev/null 2>&1") == 0 end

-- The words of HTML, or of text.
local function words(text) return (text:gsub("%s+", " "):match("^ ?(.-) ?$")) end
local function words_of(page)
  page = page:match("</nav>(.*)$"):gsub("</?a[^>]*>", ""):gsub("</?code>", ""):gsub("<[^>]*>", " ")
  return words(html.unescaped(page))
end

-- Methods that say all by their names, in every class that has them.
local plain = { forward = true, reset = true, extra_repr = true }
-- Classes whose instances are made by other functions.
local made = { ["moth.Tensor"] = true, ["moth.class.Object"] = true }

describe("the reference", function()
  local folder, files, guides = os.tmpname(), {}, succeeds "command -v cmark-gfm"
  os.remove(folder)

  lazy_setup(function()
    local count = pages.write(folder, guides and "." or nil)
    files = links.files(folder)
    for _ in pairs(files) do count = count - 1 end
    assert.equal(0, count)
  end)
  lazy_teardown(function() os.execute("rm -rf " .. folder) end)

  it("has a page for each op that users call, and all others on one", function()
    local n = 0
    for path in pairs(files) do if path:find("^ops/") then n = n + 1 end end
    for _, name in ipairs(moth.ops.list()) do
      local op = moth.ops.get(name)
      if op.internal then
        assert.is_truthy(files["parts.html"]:find(('id="%s"'):format(name), 1, true), name)
      else
        assert.is_string(files["ops/" .. name .. ".html"], name)
        n = n - 1
      end
    end
    assert.equal(0, n)
  end)

  it("has words of its own for each function and class, and for each method or that of a base class", function()
    local silent = {}
    for _, thing in ipairs(collect()) do
      local path, value = thing[1], thing[2]
      local found = value ~= nil and entry.of(path, value)
      if found and found.kind ~= "module" and not found.doc and not made[path] then silent[#silent + 1] = path end
      for _, name in ipairs(entry.is_class(value) and entry.fields(value) or {}) do
        local fn = rawget(value, name)
        local is_own = type(fn) == "function" and not (name:find "^[gl][ea][tz]y?_" or plain[name])
        if is_own and not entry.doc(path .. "." .. name, fn) then silent[#silent + 1] = path .. ":" .. name end
      end
    end
    assert.equal("", table.concat(silent, "\n"))
  end)

  it("has no dead links, and needs no other site", function()
    for path, text in pairs(files) do
      local asks = text:find("<link") or text:find("<script src") or text:find("@import")
      assert.is_nil(path:find("%.html$") and asks or nil, path)
    end
    local dead, count = links.check(files)
    assert.equal("", table.concat(dead, "\n"))
    assert.is_true(count > 5000, count .. " links")
  end)

  it("names the links that are dead", function()
    local dead, count = links.check {
      ["a.html"] = '<a href="below/b.html#one"> <a href="below/b.html#two"> <a href="#x"> <img src="no.png">',
      ["below/b.html"] = '<b id="one"> <a href="../a.html"> <a href="a.html"> <a href="https://moth.test/">'
        .. '<img src="https://moth.test/a.png"> <a href="../../a.html">',
    }
    assert.same({ "a.html -> below/b.html#two", "a.html -> #x", "a.html -> no.png", "below/b.html -> a.html",
      "below/b.html -> https://moth.test/a.png", "below/b.html -> ../../a.html" }, dead)
    assert.equal(9, count)
  end)

  it("says the same as ?name", function()
    for _, thing in ipairs(collect()) do
      local path, value = thing[1], thing[2]
      local found = entry.of(path, value)
      local op = value == nil and not found.op.internal
      local page = files[(op and "ops/" or type(value) == "table" and "lua/" or "none") .. path .. ".html"]
      if page then
        local text = words((entry.text(found):gsub("/%S*/(lua/moth/)", "%1"):gsub("`", "")))
        page = words_of(page):gsub("`", "")
        if not page:find(text, 1, true) then assert.equal(text, page) end
      end
    end
    assert.matches("d/d self</th><td><pre><a href=\"../parts.html#softmax_backward\">", files["ops/softmax.html"])
    assert.matches("%[%[0.2689, 0.7311%],", files["ops/softmax.html"])
    assert.matches('id="step"', files["lua/moth.optim.Optimizer.html"])
    assert.matches('id="multi_dot"', files["lua/moth.linalg.html"])
  end)

  it("has the guides, with their tables and pictures", function()
    if not guides then return pending("there is no cmark-gfm") end
    assert.matches("<table>", files["guides/records.html"])
    assert.matches('href="records.html"', files["guides/custom_ops.html"])
    assert.matches('<img src="spirals.png"', files["guides/README.html"])
    assert.matches("MothStatus", files["sources/src-moth.h.html"])
    assert.matches('<a href="guides/start.html">start</a>', files["index.html"]) -- docs/index.md, seen from above
    assert.matches('<a href="guides/phase00.html">', files["index.html"])
    assert.matches('id="L%d+"', files["sources/src-dispatch-dispatch.c.html"])
  end)

  it("is searched in the browser #slow", function()
    if not succeeds "command -v chromium" then return pending("there is no chromium") end
    local function found(query)
      local pipe = io.popen(("timeout 60 chromium --headless --no-sandbox --disable-gpu --dump-dom \z
        'file://%s/index.html?q=%s' 2>/dev/null"):format(folder, query))
      local rows = pipe:read("*a"):match('<table id="found">(.-)</table>')
      pipe:close()
      return rows
    end
    assert.matches('^<tr><td><a href="ops/cross_entropy.html">', found("cross%20entropy"))
    assert.matches('href="lua/moth.nn.Linear.html"', found("Linear"))
    assert.matches("nothing has these words", found("surely_nothing_here"))
  end)
end)
