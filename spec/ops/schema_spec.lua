-- The op table refuses mistakes when moth is built: each is planted in a copy of the table, and the generator must
-- end with a message that names file, line, op and what is wrong. The references that records name exist.
local S = require "ops.support"
local references = require "ops.references"

local root = debug.getinfo(1, "S").source:match("^@(.*)spec/ops/[^/]*$")
if root == "" then root = "./" end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

describe("the op table", function()
  local dir

  setup(function()
    dir = os.tmpname()
    os.remove(dir)
    -- The generator looks for kernels and rules beside src/ops: the copy has the rest as links.
    local top = assert(io.popen("cd " .. root .. ". && pwd")):read("*l")
    assert(os.execute(("mkdir -p %s/src %s/out/kernels %s/out/cuda && cp -r %s/src/ops %s/src/ops && \z
      ln -s %s/src/moth*.h %s/src && ln -s %s/kernels %s/kernels && \z
      for d in dispatch composite autograd codegen comm edge; do ln -s %s/src/$d %s/src/$d; done; \z
      ln -s %s/spec %s/spec; mkdir -p %s/lua/moth && ln -s %s/lua/moth/lang %s/lua/moth/lang"):format(dir, dir, dir,
      top, dir, top, dir, top, dir, top, dir, top, dir, dir, top, dir)) == 0)
  end)
  teardown(function() os.execute("rm -rf " .. dir) end)

  local function generate()
    local p = assert(io.popen(("luajit %s/src/ops/gen.lua %s/out 2>&1; echo status=$?"):format(dir, dir)))
    local text = p:read("*a")
    p:close()
    return tonumber(text:match("status=(%d+)")), text
  end

  -- A mistake is planted in a record: in this file, of the record of this op, `from` becomes `to`.
  local function plant(_, file, op, from, to)
    local path = ("%s/src/ops/%s.lua"):format(dir, file)
    local before = read(path)
    local first = assert(before:find('{ "' .. op .. "(", 1, true), op)
    local at, last = before:find(from, first, true)
    assert(at, from .. " does not stand in " .. op)
    write(path, before:sub(1, at - 1) .. to .. before:sub(last + 1))
    return path, before
  end

  it("is accepted as it stands", function()
    local status, text = generate()
    assert.equal(0, status, text)
  end)

  local mistakes = {
    { "an unknown value of promote", "pointwise", "mul", 'promote = "same"', 'promote = "flaot"',
      "promote = flaot: expected one of: same" },
    { "an unknown key", "pointwise", "mul", "inplace = true", "inplcae = true",
      "unknown key 'inplcae'; did you mean 'inplace'%?" },
    { "an unknown cast policy", "pointwise", "mul", 'amp = "widest"', 'amp = "hihg"', "amp = hihg: expected one of" },
    { "an unknown class of dtypes", "pointwise", "lerp", "dtypes = floats .. complex", 'dtypes = "flaot,int"',
      "dtypes = flaot,int: expected" },
    { "an unknown kind", "pointwise", "mul", 'kind = "pointwise"', 'kind = "pointwize"', "kind = pointwize: expected" },
    { "a flag that is no flag", "pointwise", "mul", "inplace = true", 'inplace = "yes"',
      "inplace = yes: expected true" },
    { "a forgotten derivative", "pointwise", "div", 'other = "neg(grad * (self / other) / other)"', "",
      "derivative by other is missing" },
    { "a derivative of what is no argument", "pointwise", "neg", "self = ", "sefl = ",
      "grad names 'sefl', which is no argument" },
    { "a derivative of a mask", "pointwise", "masked_fill", 'self = "masked_fill', 'mask = "grad", self = "masked_fill',
      "mask, which is of type Mask" },
    { "a derivative of unknown ops", "pointwise", "neg", '"neg(grad)"', '"negg(grad)"',
      "derivative of self: 'negg' is no argument, op or function" },
    { "a derivative with a jump", "pointwise", "neg", '"neg(grad)"', '"grad and neg(grad)"', "has no if, and, or" },
    { "no derivative at all", "pointwise", "neg", 'grad = { self = "neg(grad)" },', "", "grad is missing" },
    { "a reference that is not there", "nn", "softmax", 'reference = "softmax"', 'reference = "sotfmax"',
      "there is no reference 'sotfmax' in spec/ops" },
    { "a derivative that is no tensor", "pointwise", "neg", '"neg(grad)"', '"1"',
      "derivative of self: '1' is no tensor, but of kind number" },
    { "a derivative that is nothing", "pointwise", "abs", '"grad * sgn(self)"', '"none"',
      "derivative of self: 'none' is no tensor, but of kind none" },
    { "a composite that is no tensor", "linalg", "mv", '"squeeze(mm(self, unsqueeze(vec, 1)), 1)"', '"self.shape"',
      "expr: result 1 is no tensor, but of kind list" },
    { "no reference", "pointwise", "neg", 'ref = "-self",', "", "needs one of ref" },
    { "two references", "pointwise", "neg", 'ref = "-self",', 'ref = "-self", none = "why",', "needs one of ref" },
    { "no samples", "pointwise", "neg", "samples = {", "sampels = {", "unknown key 'sampels'; did you mean 'samples'" },
    { "no doc", "pointwise", "neg", 'doc = "-self."', "", "doc is missing" },
    { "no shapes of results", "nn", "softmax", ', out = "* : T",', ",", "out is missing" },
    { "no shape rule of a view", "view", "narrow", ', shape = "narrow"', "", "shape is missing" },
    { "two shape rules", "index", "cat", 'shape = "cat"', 'shape = "cat", out = "*"',
      "dims, let, out and check go without it" },
    { "shapes of a composite", "linalg", "dot", "grad =", 'out = "N", grad =', "no dims, let, out or shape" },
    { "a shape rule that is not there", "index", "cat", 'shape = "cat"', 'shape = "act"',
      "there is no moth_shape_act" },
    { "a pattern of what is no argument", "nn", "softmax_backward", "dims = { grad_output", "dims = { grad_outptu",
      "dims names 'grad_outptu', which is no argument" },
    { "a pattern that does not parse", "nn", "native_dropout", '"* : float" }', '"* N- : float" }',
      "dims.self: cannot read 'N%-'; expected a name, a number" },
    { "a pattern without an end", "norm", "native_layer_norm", "*L (ones_n(dims)) :", "*L (ones_n(dims) :",
      "out: .* has no closing parenthesis" },
    { "a pattern with two parts of unknown length", "nn", "log_softmax", 'self = "*"', 'self = "*A N *B"',
      'dims.self: "%*A N %*B" has more than one part of unknown length' },
    { "a pattern of a dtype that is none", "nn", "cross_entropy", 'weight = "C : float"', 'weight = "C : flaot"',
      "dims.weight: 'flaot' is no dtype, no class" },
    { "a size of an unknown name", "norm", "native_group_norm", 'out = { "N C *"', 'out = { "N D *"',
      "out: the size 'D' is known from no argument" },
    { "a size that is a list elsewhere", "norm", "native_batch_norm", 'bias = "C : float"', 'bias = "*C : float"',
      "dims.bias: 'C' is one size elsewhere" },
    { "a result without a pattern", "sort", "sort", '{ "*", "* : int64" }', '"*"',
      "out has 1 pattern, the schema 2 results" },
    { "a size that only an optional argument has", "norm", "native_rms_norm",
      'weight = "*D : float" },\n  out = { "*L *D"',
      'weight = "*E : float" },\n  out = { "*L *E"', "out: '%*E' is known only if 'weight' is given" },
    { "an expression of sizes with unknown names", "sort", "topk", "with_size(self, dim, k)", "wiht_size(self, dim, k)",
      "let S: 'wiht_size' is no argument, op or function" },
    { "an expression that is no list", "conv", "im2col", '["*O"] = "', '["*O"] = "0 * ', "let O" },
    { "a shape rule that computes tensors", "index", "index_select", '"(with_size(self, dim, index.numel))"',
      '"(with_size(self, dim, index.numel)) : index + 1"', "a shape rule computes no tensors" },
    { "names of let in a circle", "conv", "avg_pool2d_backward", 'let = {', 'let = { A = "B + 1", B = "A + 1",',
      "let: 'A' is defined by itself" },
    { "a condition of unknown names", "view", "as_strided_backward", '"both(equal(length(base_size)',
      '"both(equal(lenght(base_size)', "check: 'lenght' is no argument" },
    { "a condition without a message", "create", "full", "'in_range(value, T, \"the value\")'", "'is_float(T)'",
      "is no condition with a message" },
    { "a size of lists that the first does not have", "optim", "sgd_step", 'grads = "* : params"',
      'grads = "* N : params"', "dims.grads: 'N' is not known from params" },
    { "a size of each tensor of a list elsewhere", "optim", "adam_step",
      'params = "* : float", grads = "* : params", exp_avgs = "* : params", exp_avg_sqs = "* : params",',
      'params = "N : float", grads = "N : params", eps = "N",', "dims.eps: only tensors" },
    { "a condition that is none", "linalg", "mv", '"both(equal(self.ndim, 2), equal(vec.ndim, 1))"', '"self"',
      "check: 'self' is a tensor, no condition" },
    { "a dtype of a result that is none", "reduce", "any", 'out = "bool"', 'out = "keepdim"',
      "out: 'keepdim' is no dtype" },
    { "a scalar function that is not there", "pointwise", "neg", 'scalar = "neg"', 'scalar = "nge"',
      "there is no m_nge" },
    { "a limit of what is no argument", "pointwise", "clamp", 'limits = { min', 'limits = { mni',
      "limits names 'mni'" },
    { "statistics among fewer results", "norm", "native_layer_norm", 'stats = 1', 'stats = 3', "only 3 results" },
    { "a tolerance without a reason", "pointwise", "pow", ', why = "relative', ', wyh = "relative',
      "tolerance = table.*why" },
    { "an unknown type", "pointwise", "neg", "Tensor self", "Tesnor self", "unknown type 'Tesnor'" },
    { "a kernel that is not there", "view", "view", 'kind = "view"', 'kind = "extern"',
      "there is no moth_cpu_view in kernels/cpu" },
    { "a second derivative of too few values", "norm", "native_rms_norm", '["self, weight"] = rms',
      '["self, weight"] = { once = "rms_norm_backward(grad, self, result1, weight, dims, need)", again = "grad" }',
      "the derivative by self, weight gives 1 values" },
    { "a kind without its fields", "reduce", "amax", 'join = "max",', "", "kind reduce needs join" },
    { "fields of another kind", "pointwise", "neg", 'promote = "', 'join = "sum", promote = "',
      "pointwise has no join" },
    { "an unknown join", "reduce", "amax", 'join = "max"', 'join = "mxa"', "join = mxa: expected one of" },
    { "a decomposition of unknown ops", "nn", "softmax", "e = exp(", "e = epx(", "decompose: 'epx' is no argument" },
    { "a decomposition of too few results", "norm", "native_rms_norm", "self), r]]", "self)]]",
      "decompose gives 1 values, there should be 2" },
    { "a loop with unknown names", "create", "tril", "load(self, out)", "laod(self, out)",
      "loop: 'laod' is no argument or function of a loop" },
    { "a loop that does not parse", "create", "tril", "load(self, out)", "load(self, out", "loop: " },
    { "a contraction of what is no argument", "linalg", "mm", "mat2 kj", "mta2 kj", "contract names 'mta2'" },
    { "an update of what is not written to", "norm",
      "native_batch_norm", '"running_mean, running_var"', '"weight, bias"',
      "update names 'weight', which is not written to" },
    { "a store that is none", "index", "scatter", 'store = "last"', 'store = "first"',
      "store = first: expected add, last" },
    { "a default that is no word", "nn", "mse_loss", "reduction='mean'", "reduction='avg'",
      "default 'avg' of argument 'reduction' is none of its values" },
    { "a word that is none", "nn", "mse_loss", "reduced(square",
      "when(eq(reduction, 'avg'), self, self) + reduced(square",
      "'avg' is none of the words mean, sum, none" },
    { "a default of another argument that is none", "conv", "avg_pool2d", "stride=kernel_size", "stride=kernel",
      "default kernel of argument 'stride' is no number and no int%[2%]" },
    { "a range that does not parse", "nn", "dropout", "in [0,1]", "in [0,x]", "cannot read the range" },
    { "a range of what is no number", "nn", "mse_loss", "Tensor target", "Tensor target >= 0", "a range is for int" },
    { "a formula that does not parse", "pointwise", "neg", '"neg(grad)"', '"neg(grad"', "neg" },
  }

  -- The generator reports the mistakes of all records in one run, so that one run serves many plants: one of each op.
  -- Expressions are read only when each record by itself is right: plants in them have runs of their own.
  local in_expressions = { "derivative of self:", "has no if", "there is no", "gives 1 values", "decompose", "loop:",
    "contract names", "update names", "none of the words", "^neg$", "^dims%.", "^dims names",
    "^expr:", "^out:", "^out has", "^let", "^check:", "^is no condition", "^a shape rule" }
  local rounds = {}
  local function run(round)
    local files = {}
    for _, mistake in ipairs(round) do
      local path, before = plant(unpack(mistake, 1, 5))
      files[path] = files[path] or before
    end
    round.status, round.text = generate()
    for path, before in pairs(files) do write(path, before) end
  end
  local planted = {}
  for _, mistake in ipairs(mistakes) do
    local later = false
    for _, part in ipairs(in_expressions) do later = later or mistake[6]:find(part) ~= nil end
    local key = mistake[3] .. tostring(later)
    planted[key] = (planted[key] or 0) + 1
    local number = (later and "later " or "") .. planted[key]
    local round = rounds[number] or {}
    rounds[number] = round
    round[#round + 1] = mistake
    it("refuses " .. mistake[1] .. " #M069", function()
      local _, file, op, _, _, pattern = unpack(mistake)
      if not round.text then run(round) end
      assert.equal(1, round.status, round.text)
      local found
      for line in round.text:gmatch("[^\n]+") do
        found = found or line:find(("^src/ops/%s%%.lua:%%d+: %s: "):format(file, op)) and line:find(pattern)
      end
      assert(found, pattern .. "\n" .. round.text)
      assert.is_nil(round.text:find("stack traceback", 1, true), round.text)
    end)
  end

  it("names references that exist, and no reference stands alone", function()
    local used = {}
    for _, op in ipairs(S.records) do
      if op.reference then
        assert(references[op.reference], op.name .. ": there is no reference " .. op.reference)
        used[op.reference] = true
      end
    end
    for name in pairs(references) do assert(used[name], "no record names the reference " .. name) end
  end)
end)
