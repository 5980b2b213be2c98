--- Stores: keys and values (strings) that the processes of a job share, by which they find each other.
--
--     local store = dist.TCPStore("127.0.0.1", 29500, { is_master = rank == 0, token = "secret" })
--     store:set("a", "1")
--     store:get("a")              -- waits until it is set; an error after the timeout
--     store:add("n", 1)           --> 1: a counter
--
-- Other processes need the same token (default: the variable MOTH_STORE_TOKEN; else, at an address of this machine
-- alone, the server keeps one in a file that only its user can read, and clients of that user read it).
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"

local C = B.comm
local M = {}

--- A token for those who get it alone.
M.random_token = system.random_digits

--- What MOTH_STORE_TOKEN says, or nil.
function M.token()
  local token = os.getenv "MOTH_STORE_TOKEN"
  return token ~= "" and token or nil
end

--- Runs the server of a store: C.serve, which warns where everybody may use it.
function M.serve(where, host, port, token)
  local server, bound, open = C.serve(host, port, token)
  if open then
    check.warn("[distributed.%s] a store without a token%s: each user who reaches %s port %d can read and change it; \z
      set MOTH_STORE_TOKEN to a secret of the job, or start it by `moth run`", where,
      open ~= "" and (" (%s)"):format(open) or "", host, bound)
  end
  return server, bound
end

--- An address by which other machines reach this one, where `host`, a name, is loopback here (Debian writes "127.0.1.1
-- name" in /etc/hosts); else host itself. Errors: there are several, or none.
function M.outside(host)
  if not C.name_is_loopback(host) then return host end
  local list = C.interfaces(os.getenv "MOTH_SOCKET_IFNAME" or "^lo,docker,br-,virbr,veth")
  local names, first = {}, list[1]
  for i, l in ipairs(list) do
    names[i] = ("%s (%s)"):format(l.address, l.name)
    if l.name ~= list[1].name then first = nil end
  end
  if first then return first.address end
  error(("%s is a loopback address on this machine (see /etc/hosts), which others do not reach: give its address, or "
    .. "set MOTH_SOCKET_IFNAME to an interface; there are %s"):format(host, #names > 0 and table.concat(names, ", ")
    or "none that are up"), 0)
end

local function is_store(v) return type(v) == "table" and getmetatable(v) ~= nil and v.__is_store == true end
signature.type("Store", is_store, "a store")

local Store = class("Store")
Store.__is_store = true

-- Keys as the server has them.
local function named(self, key) return self.prefix .. key end
local function all_named(self, keys)
  local list = {}
  for i, key in ipairs(type(keys) == "string" and { keys } or keys) do list[i] = named(self, key) end
  if #list == 0 then check.fail("[distributed.Store] expected at least one key") end
  return list
end
local function limit(self, timeout)
  if timeout and timeout < 0 then
    check.fail("[distributed.Store] a timeout is a number of seconds, got %g", timeout)
  end
  return timeout or self.timeout
end

local function method(text, fn)
  Store[text:match("%.(%w[%w_]*)%(")] = signature.method("distributed.Store" .. text, fn)
end

--- Sets a key; wakes who waits for it.
method(".set(string key, string value)", function(self, key, value)
  C.store_set(self.handle, named(self, key), value)
end)
--- Its value; waits until it is set, at most timeout seconds.
method(".get(string key, number timeout?)", function(self, key, timeout)
  return C.store_get(self.handle, { named(self, key) }, limit(self, timeout))[1]
end)
--- The values of a list of keys, all of which it waits for.
method(".multi_get(string[] keys, number timeout?)", function(self, keys, timeout)
  return C.store_get(self.handle, all_named(self, keys), limit(self, timeout))
end)
--- Waits until all keys of a list are set.
method(".wait(string|string[] keys, number timeout?)", function(self, keys, timeout)
  C.store_wait(self.handle, all_named(self, keys), limit(self, timeout))
end)
--- Whether all keys are set.
method(".check(string|string[] keys)", function(self, keys)
  return (C.store_check(self.handle, all_named(self, keys)))
end)
--- Adds to a counter, which begins at 0; returns the sum.
method(".add(string key, int amount)", function(self, key, amount)
  return (C.store_add(self.handle, named(self, key), amount))
end)
--- Appends to a value.
method(".append(string key, string value)", function(self, key, value)
  C.store_append(self.handle, named(self, key), value)
end)
--- Sets the key to `desired` if its value is `expected` ("": if it is not set); returns its value afterwards.
method(".compare_set(string key, string expected, string desired)", function(self, key, expected, desired)
  return (C.store_compare_set(self.handle, named(self, key), expected, desired))
end)
--- Whether the key was set; it is not any more.
method(".delete_key(string key)", function(self, key)
  return (C.store_delete(self.handle, named(self, key)))
end)
--- The number of keys of the whole store.
method(".num_keys()", function(self) return (C.store_count(self.handle)) end)
method(".set_timeout(number seconds)", function(self, seconds) self.timeout = limit(self, seconds) end)
--- Ends the connection, and the server if this store has it.
method(".close()", function(self)
  if self.base then return end
  C.store_close(self.handle)
  if self.server then C.server_close(self.server) end
end)
function Store:__tostring()
  return ("%s(%s port %d%s)"):format(self.__name, self.host, self.port, self.prefix == "" and "" or ", " .. self.prefix)
end

signature.type("Port", function(v) return type(v) == "number" and v == math.floor(v) and v >= 0 and v <= 65535 end,
  "a port, an integer from 0 to 65535")

--- A client of the store at host and port. is_master: this process also runs the server, in a thread (port 0: a free
-- one, see store.port); it ends with store:close(). Errors: the port is taken; nobody answers within timeout; another
-- token.
local TCPStore = class("TCPStore", Store)
M.TCPStore = TCPStore
TCPStore.__init = signature.init("distributed.TCPStore(string host_name, Port port, *, bool is_master=false, \z
  number timeout=300, string token?)", function(self, o)
  self.host, self.port, self.prefix, self.timeout = o.host_name, o.port, "", limit(nil, o.timeout)
  local token = o.token or M.token()
  if o.is_master then self.server, self.port = M.serve("TCPStore", self.host, self.port, token) end
  self.handle = C.connect(self.host, self.port, token, self.timeout)
  self.token = token
end)

--- A store of this process alone.
local HashStore = class("HashStore", TCPStore)
M.HashStore = HashStore
HashStore.__init = signature.init("distributed.HashStore()", function(self)
  TCPStore.__init(self, "127.0.0.1", 0, { is_master = true, token = M.random_token() })
end)

--- The same store, with a text in front of all keys.
local PrefixStore = class("PrefixStore", Store)
M.PrefixStore = PrefixStore
PrefixStore.__init = signature.init("distributed.PrefixStore(string prefix, Store store)", function(self, o)
  local base = o.store
  self.base, self.handle, self.host, self.port, self.token = base, base.handle, base.host, base.port, base.token
  self.prefix, self.timeout = base.prefix .. o.prefix .. "/", base.timeout
end)

return M
