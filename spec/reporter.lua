--- busted's output handler for moth: a line for each spec file, each failure once where it happens,
-- the skips by reason at the end. Counts go to $MOTH_STATE for spec/runner.lua.

return function()
  local busted = require "busted"
  local now = require "system".monotime -- luasystem: busted needs it, too
  local handler = require "busted.outputHandlers.base"()
  local count = { passed = 0, failed = 0, skipped = 0 }
  local reasons, order = {}, {}
  local file -- what happened in the spec file now running
  local state = os.getenv("MOTH_STATE") and io.open(os.getenv("MOTH_STATE"), "w")

  local function save(at, done)
    if not state then return end
    local text = ("passed=%d\nfailed=%d\nskipped=%d\nat=%s\n%s"):format(count.passed, count.failed,
      count.skipped, (at or ""):gsub("[%c\n]", " "):sub(1, 800), done and "done=1\n" or "")
    state:seek("set")
    state:write(text, (" "):rep(1000 - #text), "\n")
    state:flush()
  end

  local function write(...)
    io.write(...)
    io.flush()
  end

  local function indent(text) return "    " .. tostring(text):gsub("\n+$", ""):gsub("\n", "\n    ") end

  local function failure(t)
    count.failed = count.failed + 1
    if file then file.failed = file.failed + 1 end
    local message = t.message
    if message == nil then message = "error(nil)" end
    if type(message) ~= "string" then message = require "pl.pretty".write(message) end
    local where = t.element.trace or t.trace or {}
    write(("✗ %s  (%s:%s)\n"):format(t.name, where.short_src or "?", where.currentline or "?"), indent(message), "\n")
    if t.isError and t.trace and t.trace.traceback then write(indent(t.trace.traceback:gsub("^\n", "")), "\n") end
  end

  local function file_start(element)
    file = { name = element.name, failed = 0, passed = count.passed, skipped = count.skipped, clock = now() }
    save(element.name)
    return nil, true
  end

  local function file_end()
    local passed, skipped = count.passed - file.passed, count.skipped - file.skipped
    if passed + skipped + file.failed > 0 then
      write(("%s %-44s %5d passed%s%s  %.2f s\n"):format(file.failed == 0 and "✓" or "✗", file.name, passed,
        file.failed > 0 and (", %d failed"):format(file.failed) or "",
        skipped > 0 and (", %d skipped"):format(skipped) or "", now() - file.clock))
    end
    file = nil
    return nil, true
  end

  local function test_start(element)
    save((file and file.name or "?") .. ": " .. handler.getFullName(element))
    return nil, true
  end

  local function test_end(element, _, status)
    if status == "success" then
      count.passed = count.passed + 1
    elseif status == "pending" then
      count.skipped = count.skipped + 1
      local reason = handler.pendings[#handler.pendings].message
      -- Outside of an `it` it is the element's name.
      reason = type(reason) == "string" and reason or element.name or "no reason given"
      reason = reason:gsub("^[^%s:]+:%d+: ", "")
      if not reasons[reason] then order[#order + 1] = reason end
      reasons[reason] = (reasons[reason] or 0) + 1
    elseif status == "failure" then
      failure(handler.failures[#handler.failures])
    else
      failure(handler.errors[#handler.errors])
    end
    handler.successes, handler.pendings, handler.failures = {}, {}, {}
    return nil, true
  end

  local function other_error(element)
    if element.descriptor ~= "it" then failure(handler.errors[#handler.errors]) end
    return nil, true
  end

  local function suite_end()
    for _, reason in ipairs(order) do write(("- %d skipped: %s\n"):format(reasons[reason], reason)) end
    save(nil, true)
    return nil, true
  end

  busted.subscribe({ "file", "start" }, file_start)
  busted.subscribe({ "file", "end" }, file_end)
  busted.subscribe({ "test", "start" }, test_start)
  busted.subscribe({ "test", "end" }, test_end)
  busted.subscribe({ "error" }, other_error)
  busted.subscribe({ "failure" }, other_error)
  busted.subscribe({ "suite", "end" }, suite_end)
  return handler
end
