--- nn.Conv1d, 2d, 3d and nn.ConvTranspose1d, 2d, 3d.
--
--     nn.Conv2d(1, 32, 3, { padding = 1 })                  -- or by position: nn.Conv2d(1, 32, 3, 1, 1)
--     nn.Conv2d(32, 64, { 3, 5 }, { stride = 2, padding = { 1, 2 }, groups = 4, bias = false })
local moth = require "moth"
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local functional = require "moth.nn.functional"
local sizes = require "moth.nn.sizes"
local init = require "moth.nn.init_"

-- Numbers as PyTorch's listing shows a tuple.
local function tuple(list)
  return #list == 1 and ("(%d,)"):format(list[1]) or ("(%s)"):format(table.concat(list, ", "))
end

local function differs(list, value)
  for _, x in ipairs(list) do if x ~= value then return true end end
  return false
end

-- The padding as moth.pad takes it: { before, after, … } from the last dimension on.
local function around(self, n)
  local pad, more, list = self.padding, nil, {}
  if type(pad) == "string" then
    pad, more = sizes.named_padding("padding", pad, self.kernel_size, self.stride, self.dilation)
  end
  for i = n, 1, -1 do
    local p = type(pad) == "table" and pad[i] or pad
    list[#list + 1] = p
    list[#list + 1] = p + (more and more[i] and 1 or 0)
  end
  return list
end

local function make(name, n, transposed)
  local cls, where = class(name, Module), "nn." .. name
  local op = B.ops[(transposed and "conv_transpose" or "conv") .. n .. "d"]
  local conv = functional["conv" .. n .. "d"]

  local signed = where .. "(count in_channels, count out_channels, int|int[] kernel_size, int|int[] stride=1, "
    .. (transposed
    and "int|int[] padding=0, int|int[] output_padding=0, count groups=1, bool bias=true, int|int[] dilation=1, \z
    'zeros' " or "int|int[]|'same'|'valid' padding=0, int|int[] dilation=1, count groups=1, bool bias=true, "
    .. "'zeros'|'reflect'|'replicate'|'circular' ") .. "padding_mode='zeros', device device?, dtype dtype?)"

  cls.__init = signature.init(signed, function(self, o)
    local in_channels, out_channels, groups = o.in_channels, o.out_channels, o.groups
    if in_channels % groups ~= 0 or out_channels % groups ~= 0 then
      check.fail("[%s] groups (%d) must divide in_channels (%d) and out_channels (%d)", where, groups, in_channels,
        out_channels)
    end
    self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
    self.padding_mode = o.padding_mode
    self.kernel_size = sizes.of(where, "kernel_size", o.kernel_size, n)
    self.stride = sizes.of(where, "stride", o.stride, n)
    self.dilation = sizes.of(where, "dilation", o.dilation, n)
    if type(o.padding) == "string" then
      sizes.named_padding(where, o.padding, self.kernel_size, self.stride, self.dilation)
      self.padding = o.padding
    else
      self.padding = sizes.of(where, "padding", o.padding, n)
    end
    if transposed then self.output_padding = sizes.of(where, "output_padding", o.output_padding, n) end
    local size = { out_channels, in_channels / self.groups, unpack(self.kernel_size) }
    if transposed then size[1], size[2] = in_channels, out_channels / self.groups end
    local like = { dtype = o.dtype, device = o.device }
    self.weight = Parameter(moth.empty(size, like))
    if o.bias then self.bias = Parameter(moth.empty({ out_channels }, like)) end
    self:reset()
  end)

  --- PyTorch's default: both uniform within ±1 / sqrt(fan_in).
  function cls:reset()
    init.kaiming_uniform_(self.weight, { a = math.sqrt(5) })
    if not self.bias then return end
    local fan_in = B.size(self.weight, 2)
    for _, k in ipairs(self.kernel_size) do fan_in = fan_in * k end
    init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
  end

  if transposed then
    local read = signature(("%s:forward(Tensor input, int|int[] output_size?)"):format(where),
      function(...) return ... end)

    -- The output_padding that gives the sizes `want` (the last n of a list).
    local function padding_for(self, x, want)
      if type(want) == "number" then want = sizes.of(where, "output_size", want, n) end
      if #want ~= n and #want ~= B.dim(x) then
        check.fail("[%s] output_size: expected %d sizes, or %d", where, n, B.dim(x))
      end
      local list = {}
      for i = 1, n do
        local own = (B.size(x, B.dim(x) - n + i) - 1) * self.stride[i] - 2 * self.padding[i]
          + self.dilation[i] * (self.kernel_size[i] - 1) + 1
        list[i] = want[#want - n + i] - own
        if list[i] < 0 or list[i] >= math.max(self.stride[i], self.dilation[i]) then
          check.fail("[%s] output_size must be between %d and %d in dimension %d, got %d", where, own,
            own + math.max(self.stride[i], self.dilation[i]) - 1, B.dim(x) - n + i, want[#want - n + i])
        end
      end
      return list
    end

    --- (N, C, …) -> (N, K, …); output_size: sizes of the result, in place of output_padding
    function cls:forward(x, output_size)
      local more = self.output_padding
      if output_size ~= nil then
        x, output_size = read(x, output_size)
        more = padding_for(self, x, output_size)
      end
      return op(x, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation)
    end
  else
    function cls:forward(x)
      if self.padding_mode ~= "zeros" then
        x = moth.pad(x, around(self, n), self.padding_mode)
        return op(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)
      end
      if type(self.padding) == "string" then
        return conv(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
      end
      return op(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
    end
  end

  function cls:extra_repr()
    local parts = { self.in_channels .. ", " .. self.out_channels, "kernel_size=" .. tuple(self.kernel_size),
      "stride=" .. tuple(self.stride) }
    local function add(text, ...) parts[#parts + 1] = text:format(...) end
    if type(self.padding) == "string" then
      add("padding=%s", self.padding)
    elseif differs(self.padding, 0) then
      add("padding=%s", tuple(self.padding))
    end
    if differs(self.dilation, 1) then add("dilation=%s", tuple(self.dilation)) end
    if transposed and differs(self.output_padding, 0) then add("output_padding=%s", tuple(self.output_padding)) end
    if self.groups ~= 1 then add("groups=%d", self.groups) end
    if not self.bias then add("bias=False") end
    if self.padding_mode ~= "zeros" then add("padding_mode=%s", self.padding_mode) end
    return table.concat(parts, ", ")
  end

  return cls
end

return {
  Conv1d = make("Conv1d", 1), Conv2d = make("Conv2d", 2), Conv3d = make("Conv3d", 3),
  ConvTranspose1d = make("ConvTranspose1d", 1, true), ConvTranspose2d = make("ConvTranspose2d", 2, true),
  ConvTranspose3d = make("ConvTranspose3d", 3, true),
}
