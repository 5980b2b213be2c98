--- Whether a program is recorded for export at the moment; without loading what records it.
return function()
  local record = package.loaded["moth.export.record"]
  return record ~= nil and record.active() ~= nil
end
