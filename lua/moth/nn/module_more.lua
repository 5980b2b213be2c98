--- Methods of nn.Module that few programs call: parts by path, parameters without values.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"

return function(Module)
  local function all(...) return ... end

  -- The module that holds what a path names, and the name there.
  local function holder(self, path)
    local parent, name = path:match("^(.*)%.([^.]*)$")
    return self:get_submodule(parent or ""), name or path
  end

  --- get_parameter(path), get_buffer(path): the tensor at a path such as "net.1.weight".
  for kind, registry in each { parameter = "_parameters", buffer = "_buffers" } do
    Module["get_" .. kind] = signature.method(("get_%s(string target)"):format(kind), function(self, path)
      local m, name = holder(self, path)
      local t = rawget(m:registry(registry), name)
      if not t then check.fail("[get_%s] %s has no %s '%s'", kind, self.__name, kind, path) end
      return t
    end)
  end

  local placed = signature("set_submodule(string target, Module module)", all)

  --- Replaces the module at a path such as "net.1", or adds it there.
  function Module:set_submodule(...)
    local path, module = placed(...)
    if path == "" then check.fail("[set_submodule] the path is empty") end
    local m, name = holder(self, path)
    m:add_module(name, module)
    return self
  end

  --- The same as add_module.
  function Module:register_module(...) return self:add_module(...) end

  --- Parameters as after construction; nothing for modules without any of their own.
  function Module:reset_parameters()
    if self.reset then self:reset() end
    return self
  end

  local dtype_of = signature("type(dtype dst_type)", all)

  --- Converts parameters and buffers of floating-point numbers.
  function Module:type(...) return self:to(B.dtype((dtype_of(...)))) end

  local emptied = signature("to_empty(*, device device, bool recurse=true)", all)

  --- Moves to a device, in place; parameters and buffers have no values there: for modules that were made on the device
  -- meta. recurse = false: only those of the module itself.
  function Module:to_empty(...)
    local device, recurse = emptied(...)
    return self:convert(function(t) return moth.empty_like(t, { device = device }) end, recurse)
  end

end
