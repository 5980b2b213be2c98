-- The notebooks of examples/, by the real nbconvert, where jupyter is.
local cjson = require "cjson"
local build = os.getenv "MOTH_BUILD" or "build"

local can = require("moth.jupyter.zmq").available() and os.execute "command -v jupyter > /dev/null 2>&1" == 0
  and os.execute "jupyter nbconvert --version > /dev/null 2>&1" == 0;

(can and describe or pending)("notebooks #noasan", function()
  for _, name in ipairs { "tensors", "digits" } do
    it(name .. " runs", function()
      local dir = os.tmpname()
      os.remove(dir)
      finally(function() os.execute("rm -r " .. dir) end)
      local text = ("mkdir @dir && JUPYTER_DATA_DIR=@dir @moth kernel install > @dir/log && JUPYTER_PATH=@dir jupyter "
        .. "nbconvert --execute --to notebook --output-dir @dir examples/notebooks/@name.ipynb >> @dir/log 2>&1")
      local status = os.execute((text:gsub("@(%l+)", { dir = dir, moth = build .. "/moth", name = name })))
      local f = assert(io.open(dir .. "/log"))
      assert.equal(0, status, f:read "*a")
      f:close()
      f = assert(io.open(("%s/%s.ipynb"):format(dir, name)))
      local shown = {}
      for _, cell in ipairs(cjson.decode(f:read "*a").cells) do
        for _, o in ipairs(cell.outputs or {}) do
          for kind in pairs(o.data or { [o.name or o.output_type] = true }) do shown[kind] = (shown[kind] or 0) + 1 end
        end
      end
      f:close()
      assert.is_nil(shown.stderr)
      assert.is_true(shown["image/svg+xml"] >= 1)
    end)
  end
end)
