-- Each example, run again and again in one process to a thousand steps of training and more: after the last run there
-- are as many bytes of tensors as after the second. Lua's own memory and the process's may grow by compiled code and
-- cached blocks. (spec/steady.lua runs one; `make soak` is the long one.)
local options = {
  custom_function = "--quick", dtype_precision = "--quick", maml = "--quick", manual_backprop = "--quick",
  micrograd = "--quick", ffi_train = "100",
  fashion_cnn = "--dataset digits --limit 640 --epochs 25",
  fashion_mnist = "--dataset digits --limit 640 --epochs 25 --save %s",
  chat = "</dev/null", finetune_gpt = "--before 2 --steps 250 --batch 1 --save %s",
  char_gpt = "--layers 1 --width 16 --heads 2 --context 8 --batch 2 --warmup 2 --length 10 --steps 250 --save %s",
}
local MB = 2 ^ 20

local function lines_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

describe("memory over a thousand steps #slow", function()
  for name in lines_of("ls examples/*.lua"):gmatch("examples/([%w_]+)%.lua") do
    it("stays: " .. name, function()
      local file = os.tmpname()
      finally(function() os.remove(file) end)
      local text = lines_of(("%s spec/steady.lua examples/%s.lua %s 2>&1"):format(os.getenv("LUAJIT") or "luajit", name,
        (options[name] or ""):format(file))) -- the runner's module paths are handed on
      local of = {}
      for what, early, late in text:gmatch("(%l+) (%d+) (%d+)") do of[what] = { tonumber(early), tonumber(late) } end
      assert.is_truthy(of.tensors, text)
      assert.equal(of.tensors[1], of.tensors[2], text)
      assert.is_true(of.lua[2] - of.lua[1] < MB, text)
      assert.is_true(of.rss[2] - of.rss[1] < 64 * MB, text)
    end)
  end
end)
