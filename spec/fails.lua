--- fails(pattern, fn, ...): fn must raise an error that one of the patterns, separated by |, matches. Gives the error.
return function(pattern, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok, "no error; expected " .. pattern)
  local found = false
  for p in (pattern .. "|"):gmatch("(.-)|") do found = found or tostring(err):find(p) ~= nil end
  assert(found, ("'%s' does not match '%s'"):format(tostring(err), pattern))
  return err
end
