--- Writes a C program that calls every public function with arguments chosen at random: NULLs, wild enums, huge and
-- negative sizes, values of wrong kinds, beside good ones.
--
--     luajit spec/fuzz/c_api.lua build/gen/moth_ops.h > c_api.c; cc … c_api.c -lmoth; ./a.out SEED CALLS
--
-- The functions are read from src/moth.h and the header of the ops: a new one is in. The program says what it called
-- and fails if an error has no message; it is to run under ASan and UBSan. What no library can check is not tried:
-- pointers to nothing, counts beyond an array's end, references given away twice.
local function read(path)
  local f = assert(io.open(path))
  local text = f:read("*a"):gsub("/%*.-%*/", "")
  f:close()
  return text
end

-- { result, name, { { type, name }, … } } of every declaration
local function declarations(text)
  local list = {}
  for result, name, rest in text:gmatch("MOTH_API%s+([%w_%s]-%s?%*?)%s*(moth_[%w_]+)%((.-)%);") do
    local parameters = {}
    rest = rest:gsub("%s+", " "):gsub("void %(%*release%)%(void %*ctx%)", "Release release")
    rest = rest:gsub("MothStatus %(%*run%)%(void %*ctx%)", "Task run")
      :gsub("void %(%*drop%)%(void %*ctx%)", "Release drop")
      :gsub("void %(%*define%)%(MothLibrary %*%)", "Define define")
    for p in (rest == "void" and "" or rest):gmatch("[^,]+") do
      local type_, parameter = p:match("^%s*(.-)%s*([%w_]+)%s*$")
      type_ = type_ or "..."
      parameters[#parameters + 1] = { type = type_:gsub("%s", ""):gsub("^const", ""), name = parameter }
    end
    list[#list + 1] = { result = result:gsub("%s+$", ""), name = name, parameters = parameters }
  end
  return list
end

local pick = { -- how a value of a type is chosen
  ["MothTensor*"] = "tensor()", ["MothTensor**"] = "tensors()", ["MothValue"] = "value()", ["MothValue*"] = "values()",
  ["MothGenerator*"] = "generator()", ["char*"] = "string()", ["MothDType"] = "(MothDType)enumeration()",
  ["MothDeviceType"] = "(MothDeviceType)enumeration()", ["MothDevice"] = "device()", ["bool"] = "(bool)below(2)",
  ["int"] = "count()", ["int64_t"] = "integer()", ["uint64_t"] = "(uint64_t)integer()", ["double"] = "number()",
  ["int64_t*"] = "sizes()", ["uint64_t*"] = "(below(4) ? &words[below(2)] : NULL)", ["void*"] = "bytes()",
  ["MothMemStats*"] = "(below(4) ? &stats : NULL)", ["MothMeta*"] = "(below(4) ? metas : NULL)",
  ["MothOp*"] = "op()", ["MothKernel"] = "(below(4) ? refuse : NULL)",
  ["Release"] = "(below(2) ? nothing : NULL)", ["MothRelease"] = "(below(2) ? nothing : NULL)",
  ["MothGradHook"] = "(below(4) ? grad_hook : NULL)", ["MothLeafHook"] = "(below(4) ? leaf_hook : NULL)",
  ["MothCallback"] = "(below(4) ? callback : NULL)",
  ["MothSavedTensorsHooks*"] = "(below(8) ? &saved_hooks : NULL)",
  ["Task"] = "(below(4) ? task : NULL)", ["MothStream*"] = "stream()",
  ["MothStream**"] = "(below(8) ? &new_stream : NULL)", ["MothEvent*"] = "(below(8) ? events[below(2)] : NULL)",
  ["MothEvent**"] = "(below(8) ? &new_event : NULL)", ["bool*"] = "(below(8) ? &flag : NULL)",
  ["double*"] = "(below(8) ? &milliseconds : NULL)",
  ["Define"] = "(below(2) ? define : NULL)",
  ["MothOpDef*"] = "(below(4) ? &definition : NULL)", ["MothNode*"] = "NULL", ["MothCall*"] = "NULL",
  ["MothLibrary*"] = "NULL", ["MothBackend*"] = "NULL",
  ["MothDeviceType*"] = "NULL", ["MothOp**"] = "(below(4) ? &defined : NULL)",
}
-- Takes any number of arguments: what they are no library can check.
local variadic = { moth_fail = true }
-- A count belongs to the list beside it: NULL goes with any, an array with what it has.
local count_of = { ndim = "shape", n = "roots", ninputs = "inputs", nargs = "args" }
local only = { -- only with arguments that do no harm to later calls
  moth_tensor_retain = { "NULL" }, moth_tensor_release = { "NULL" }, moth_generator_retain = { "NULL" },
  moth_generator_release = { "NULL" }, moth_memory_fail_at = { "-(int64_t)below(2)", "below(2)" },
  moth_storage_resize = { [2] = "(below(2) ? moth_storage_nbytes(a1) : -1 - (int64_t)below(9))" },
  moth_stream_retain = { "NULL" }, moth_stream_release = { "NULL" }, moth_event_free = { "NULL" },
  moth_op_register = { [2] = "(MothDeviceType)(MOTH_USER + below(2) * 7)" },
  moth_call_set_result = { [3] = "NULL" },
}
local after = {
  moth_set_num_threads = "moth_set_num_threads(1)", moth_set_default_dtype = "moth_set_default_dtype(MOTH_FLOAT32)",
  moth_set_grad_enabled = "moth_set_grad_enabled(recording)",
  moth_stream_new = "drop_stream()",
  moth_stream_default = "drop_stream()", moth_stream_current = "drop_stream()", moth_event_new = "drop_event()",
  moth_tensor_from_ptr = "drop(outs)",
}

local function call(f)
  local out, lines, arguments = nil, {}, {}
  for i, p in ipairs(f.parameters) do
    local expression = only[f.name] and only[f.name][i] or pick[p.type]
    if not expression then error(("%s: no way to choose a %s"):format(f.name, p.type)) end
    local variable = "a" .. i
    if p.name:find("^out%d*$") and p.type == "MothTensor**" then
      out = out or {}
      out[#out + 1] = i
      expression = ("(below(8) ? outs + %d : NULL)"):format(#out - 1)
    elseif p.name == "out" and p.type == "MothValue*" or p.name == "results" then
      expression = "(below(8) ? results : NULL)"
    end
    local id = p.name == "id" and p.type == "int64_t*"
    if id then expression = "(below(4) ? &hook_id : NULL)" end
    local constant = not id and p.type == "int64_t*" or p.type == "char*" or p.type == "MothOp*" or p.type == "MothOp**"
      or p.type == "MothSavedTensorsHooks*"
    lines[#lines + 1] = ("    %s%s %s = %s;"):format(constant and "const " or "", p.type:gsub("(%*+)", " %1"), variable,
      expression)
    arguments[i] = variable
  end
  for i, p in ipairs(f.parameters) do
    local of = p.name:match("^n_(.*)$") or count_of[p.name]
    for k, q in ipairs(p.type == "int" and f.parameters or {}) do
      if q.name == of then
        lines[#lines + 1] = ("    if (a%d && a%d > LENGTH)\n      a%d = (int)below(LENGTH);"):format(k, i, i)
      end
    end
  end
  local expression = ("%s(%s)"):format(f.name, table.concat(arguments, ", "))
  if f.result == "MothStatus" then
    lines[#lines + 1] = ("    check(\"%s\", %s);"):format(f.name, expression)
  elseif f.name == "moth_generator_new" then
    lines[#lines + 1] = ("    moth_generator_release(%s);"):format(expression)
  else
    lines[#lines + 1] = ("    %s%s;"):format(f.result == "void" and "" or "(void)", expression)
  end
  if after[f.name] then lines[#lines + 1] = "    " .. after[f.name] .. ";" end
  return table.concat(lines, "\n")
end

local functions = {}
for _, path in ipairs({ "src/moth.h", ... }) do
  for _, f in ipairs(declarations(read(path))) do
    if not variadic[f.name] then functions[#functions + 1] = f end
  end
end
assert(#functions > 100, "the headers have no declarations")
local cases, names = {}, {}
for i, f in ipairs(functions) do
  cases[i] = ("  case %d: {\n    name = \"%s\";\n%s\n    break;\n  }"):format(i - 1, f.name, call(f))
  names[i] = ('"%s"'):format(f.name:sub(#"moth_" + 1))
end

local f = assert(io.open("spec/fuzz/c_api.c"))
local frame = f:read("*a")
f:close()
io.write((frame:gsub("default: /%* THE CALLS %*/\n%s*break;", function() return table.concat(cases, "\n") end)
  :gsub('"" /%* THE NAMES %*/', function() return table.concat(names, ", ") end)
  :gsub("FUNCTIONS = 1", "FUNCTIONS = " .. #functions)))
