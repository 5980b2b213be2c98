-- The C API with what it cannot take: an error status with a message, or the neutral value that moth.h names.
local ffi = require "ffi"
local build = os.getenv("MOTH_BUILD") or "build"
local cases = tonumber(os.getenv("MOTH_CASES"))

ffi.cdef [[
typedef struct FuzzValue { union { long long i; void *p; } u; unsigned tag, n; } FuzzValue;
typedef struct FuzzDevice { unsigned char type, index; } FuzzDevice;
int moth_backward(void **, void **, int, bool, bool);
int moth_grad(void **, void **, int, void **, int, bool, bool, bool, void **);
int moth_cat(void **, int, long long, void **);
int moth_exp(void *, void **);
int moth_exp_(void *);
int moth_exp_out(void *, void *);
int moth_tensor_item(void *, FuzzValue *);
int moth_tensor_new(int, const long long *, int, FuzzDevice, void **);
int moth_tensor_from_ptr(void *, int, const long long *, int, void (*)(void *), void *, void **);
int moth_op_call(const void *, int, const FuzzValue *, FuzzValue *);
const void *moth_op_find(const char *);
int moth_op_register(const char *, int, void *);
const char *moth_dtype_name(int);
long long moth_dtype_size(int);
int moth_dtype_promote(int, int);
int moth_tensor_dtype(void *);
int moth_tensor_ndim(void *);
const long long *moth_tensor_shape(void *);
bool moth_tensor_requires_grad(void *);
int moth_tensor_set_grad(void *, void *);
int moth_set_cpu_level(const char *);
void moth_tensor_retain(void *);
void moth_memory_stats(void *);
void moth_tensor_release(void *);
const char *moth_last_error(void);
]]
local C = ffi.load(build .. "/libmoth.so")

describe("the C API #quick", function()
  local MOTH_NDTYPES = 0
  while ffi.string(C.moth_dtype_name(MOTH_NDTYPES)) ~= "?" do MOTH_NDTYPES = MOTH_NDTYPES + 1 end

  it("refuses NULL, wild enums and negative counts", function()
    local out, cpu, none = ffi.new("void *[4]"), ffi.new("FuzzDevice"), ffi.new("void *[4]")
    local shape = ffi.new("long long[2]", 2, 3)
    local function refused(pattern, status)
      assert.is_true(status ~= 0)
      local message = ffi.string(C.moth_last_error())
      assert.is_truthy(message:find(pattern), message)
    end
    refused("no output", C.moth_backward(nil, nil, 0, false, false))
    refused("output 1", C.moth_backward(nil, nil, 1, false, false))
    refused("output 1", C.moth_backward(none, nil, 4, false, false))
    refused("no input", C.moth_grad(none, nil, 1, nil, -1, false, false, false, out))
    refused("'tensors' is NULL", C.moth_cat(nil, 2, 0, out))
    refused("'tensors' is NULL", C.moth_cat(none, 2, 0, out))
    refused("'tensors' is NULL", C.moth_cat(none, -2, 0, out))
    refused("'self' is NULL", C.moth_exp(nil, out))
    refused("'self' is NULL", C.moth_exp_(nil))
    refused("item: an argument is NULL", C.moth_tensor_item(nil, ffi.new("FuzzValue")))
    refused("99 is no dtype", C.moth_tensor_new(2, shape, 99, cpu, out))
    refused("no dtype", C.moth_tensor_new(2, shape, -1, cpu, out))
    refused("NULL", C.moth_tensor_new(2, nil, 0, cpu, out))
    refused("NULL", C.moth_tensor_new(2, shape, 0, cpu, nil))
    refused("no device of type 77", C.moth_tensor_new(2, shape, 0, ffi.new("FuzzDevice", 77, 0), out))
    refused("from_ptr: NULL", C.moth_tensor_from_ptr(nil, 2, shape, 0, nil, nil, out))
    refused("no such op", C.moth_op_call(nil, 0, nil, nil))
    refused("few", C.moth_op_call(C.moth_op_find("exp"), -1, nil, nil))
    refused("results are NULL", C.moth_op_call(C.moth_op_find("exp"), 0, nil, nil))
    refused("NULL", C.moth_op_register("exp", 2, nil))
    refused("no op named 'NULL'", C.moth_op_register(nil, 2, nil))
    refused("grad: an argument is NULL", C.moth_tensor_set_grad(nil, nil))
    refused("set_cpu_level: an argument is NULL", C.moth_set_cpu_level(nil))
    assert.equal(0, C.moth_tensor_new(2, shape, 0, cpu, out))
    refused("result: an argument is NULL", C.moth_exp(out[0], nil))
    refused("write to is NULL", C.moth_exp_out(out[0], nil))
    C.moth_tensor_release(out[0])
  end)

  it("gives neutral values where there is no status", function()
    assert.is_true(C.moth_op_find(nil) == nil)
    assert.equal("?", ffi.string(C.moth_dtype_name(99)))
    assert.equal("?", ffi.string(C.moth_dtype_name(-1)))
    assert.equal(0, tonumber(C.moth_dtype_size(99)))
    assert.equal(MOTH_NDTYPES, C.moth_dtype_promote(0, 99))
    assert.equal(MOTH_NDTYPES, C.moth_tensor_dtype(nil))
    assert.equal(0, C.moth_tensor_ndim(nil))
    assert.is_true(C.moth_tensor_shape(nil) == nil)
    assert.is_false(C.moth_tensor_requires_grad(nil))
    C.moth_tensor_retain(nil)
    C.moth_memory_stats(nil)
  end)
end)

describe("every function of the C API", function()
  it("takes random arguments and stays alive", function()
    local folder = os.tmpname()
    os.remove(folder)
    finally(function() os.execute("rm -rf " .. folder) end)
    local pipe = assert(io.popen(("sh spec/fuzz/c_api.sh %s %s %d %d 2>&1; echo status=$?"):format(build, folder,
      cases and cases * 1000 or 50000, tonumber(os.getenv("MOTH_SEED")) or 1)))
    local text = pipe:read("*a")
    pipe:close()
    assert.is_truthy(text:find("status=0"), text)
    assert.is_truthy(text:find("calls of %d%d%d functions, 0 not called"), text)
  end)
end)
