/* Several Lua states in one process: each trains in a thread of its own at once, with hooks, a seed, a dtype and a
 * number of threads of its own, and gets what it gets alone; two that hand each other batches, with every kind of hook,
 * Function, mode, subclass and a device of their own; and two in one thread, in turn, with values of one let go of while
 * the other runs, or after it was closed. Prints "ok" and returns 0, or what was wrong. */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATES = 4, TEXT = 4096 };

/* run(seed): trains and tells its losses, with as many digits as they have. */
static const char program[] =
    "local moth = require 'moth'\n"
    "local nn, optim = moth.nn, moth.optim\n"
    "local double = moth.autograd.Function { forward = function(_, t) return t * 2 end,\n"
    "  backward = function(_, g) return g * 2 end }\n"
    "function run(seed)\n"
    "  moth.manual_seed(seed)\n"
    "  moth.set_num_threads(1 + seed % 3)\n"
    "  moth.set_default_dtype(seed % 2 == 0 and moth.float64 or moth.float32)\n"
    "  local net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))\n"
    "  local opt = optim.SGD(net:parameters(), { lr = 0.05, momentum = 0.9 })\n"
    "  local hooked, out = 0, {}\n"
    "  net[1].weight:register_hook(function(g) hooked = hooked + 1 return g * 1 end)\n"
    "  for step = 1, 25 do\n"
    "    local x = moth.randn(32, 8)\n"
    "    local y = x:sum(2, true)\n"
    "    opt:zero_grad()\n"
    "    local h = net(x)\n"
    "    h:register_hook(function(g) hooked = hooked + 1 return g end)\n"
    "    local loss = moth.mse_loss(double(h), y)\n"
    "    moth.dispatch.trace(function() return loss + 1 end)\n"
    "    loss:backward()\n"
    "    opt:step()\n"
    "    out[step] = ('%.17g'):format(loss:item())\n"
    "    if step % 5 == 0 then collectgarbage() end\n"
    "  end\n"
    "  out[#out + 1] = hooked .. ' ' .. moth.get_num_threads() .. ' ' .. "
    "tostring(moth.get_default_dtype())\n"
    "  out[#out + 1] = tostring(moth.rand(1):item())\n"
    "  return table.concat(out, ' ')\n"
    "end\n"
    /* A graph with hooks that somebody else lets go of: kept, then dropped. */
    "function keep()\n"
    "  local w = moth.ones(3, { requires_grad = true })\n"
    "  local y = w * 2\n"
    "  y:register_hook(function(g) return g * 3 end)\n"
    "  kept = (y * 1):sum()\n"
    "  return w\n"
    "end\n"
    "function drop() kept = nil collectgarbage() collectgarbage() end\n"
    "function use() local w = keep() kept:backward() return tostring(w.grad:sum():item()) end\n"
    "function enter()\n"
    "  inside = coroutine.wrap(function()\n"
    "    return moth.scope(function()\n"
    "      return moth.no_grad(function()\n"
    "        coroutine.yield()\n"
    "        local x = moth.ones(3) + 1\n"
    "        return tostring(moth.is_grad_enabled())\n"
    "      end)\n"
    "    end)\n"
    "  end)\n"
    "  inside()\n"
    "end\n"
    "function leave() return inside() end\n"
    "function recording() local x = moth.ones(3) + 1 return tostring(moth.is_grad_enabled()) end\n"
    "function spin() local x = moth.ones(3) for i = 1, 10 do x = x + 0 end return 'spun' end\n"
    /* Tensors go from state to state as pointers that hold a reference. */
    "local ffi, C, capi = require 'ffi', moth.C, moth.capi\n"
    "local function pass_on(t)\n"
    "  C.moth_tensor_retain(capi.tensor(t))\n"
    "  return tonumber(ffi.cast('intptr_t', capi.tensor(t)))\n"
    "end\n"
    "local function taken(n) return capi.own(ffi.cast('MothTensor *', n)) end\n"
    "local function batch(seed, step)\n"
    "  return moth.randn(16, 8, { generator = moth.Generator(100 * seed + step) })\n"
    "end\n";

/* exchange(seed): trains on batches that another state makes; where put is nil, they are made here. */
static const char busy[] =
    "local Scale = moth.autograd.Function { name = 'Scale',\n"
    "  forward = function(ctx, x, k)\n"
    "    ctx.list, ctx.k = { x, x * k }, k\n"
    "    ctx:save_for_backward(x)\n"
    "    return x * k\n"
    "  end,\n"
    "  backward = function(ctx, g)\n"
    "    assert(moth.equal(ctx.list[1], (ctx:saved_tensors())))\n"
    "    return g * ctx.k, nil\n"
    "  end }\n"
    "function exchange(seed)\n"
    "  moth.manual_seed(seed)\n"
    "  local graph, counts = moth.autograd.graph, {}\n"
    "  local function count(what) counts[what] = (counts[what] or 0) + 1 end\n"
    "  moth.library.register_backend('mydev', { neg = function(args, results)\n"
    "    count 'kernel'\n"
    "    results[1]:copy_(-args[1]:cpu())\n"
    "  end })\n"
    "  local Logging = moth.tensor_subclass('Logging', { dispatch = function(_, func, _, args)\n"
    "    count 'subclass'\n"
    "    return func(unpack(args, 1, args.n))\n"
    "  end })\n"
    "  local net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))\n"
    "  local opt = optim.SGD(net:parameters(), { lr = 0.05 })\n"
    "  net[1]:register_full_backward_hook(function() count 'module' end)\n"
    "  net[2]:register_forward_hook(function() count 'forward' end)\n"
    "  for _, p in ipairs(net:parameters()) do\n"
    "    p:register_post_accumulate_grad_hook(function(x) count 'after' assert(x.grad) end)\n"
    "  end\n"
    "  graph.register_multi_grad_hook({ net[1].weight, net[3].weight }, function(grads)\n"
    "    assert(grads[1] and grads[2])\n"
    "    moth.autograd.queue_callback(function() count 'end' end)\n"
    "  end)\n"
    "  local out = {}\n"
    "  for step = 1, 12 do\n"
    "    local x\n"
    "    if put then\n"
    "      put(seed, pass_on(batch(seed, step):detach()))\n"
    "      x = taken(take(seed))\n"
    "    else\n"
    "      x = batch(1 - seed, step)\n"
    "    end\n"
    "    local y = x:sum(2, true)\n"
    "    opt:zero_grad()\n"
    "    local loss = graph.saved_tensors_hooks(function(t) count 'pack' return { t } end,\n"
    "      function(p) count 'unpack' return p[1] end, function()\n"
    "        return moth.dispatch_mode(function(func, args)\n"
    "          count 'mode'\n"
    "          return func(unpack(args, 1, args.n))\n"
    "        end, function()\n"
    "          local h = net(x)\n"
    "          h:register_hook(function(g) count 'hook' return h:dim() == 2 and g end)\n"
    "          h.grad_fn:register_hook(function() count 'node' end)\n"
    "          return moth.mse_loss(Scale(h, 1.5), y)\n"
    "        end)\n"
    "      end)\n"
    "    counts.ops = (counts.ops or 0) + moth.dispatch.count(function()\n"
    "      graph.watch_nodes({ begin = function() count 'begin' end }, function() loss:backward() "
    "end)\n"
    "    end)\n"
    "    opt:step()\n"
    "    local z = Logging(x:detach()) * 2\n"
    "    z = x[1]:to('mydev'):neg():cpu()\n"
    "    out[step] = ('%.17g %.17g'):format(loss:item(), z:sum():item())\n"
    "    if step % 4 == 0 then collectgarbage() end\n"
    "  end\n"
    "  for _, k in ipairs { 'kernel', 'subclass', 'module', 'forward', 'after', 'end', 'pack', "
    "'unpack', 'mode', 'hook',\n"
    "    'node', 'begin', 'ops' } do out[#out + 1] = k .. '=' .. counts[k] end\n"
    "  return table.concat(out, ' ')\n"
    "end\n"
    /* A graph with everything of this state's on it, for another state. */
    "function give()\n"
    "  local w = moth.ones(3, { requires_grad = true })\n"
    "  w:register_hook(function(g) return w and g end)\n"
    "  local y = moth.autograd.graph.saved_tensors_hooks(function(t) return t end, function(t) "
    "return t end, function()\n"
    "    return Scale(w:exp(), 2)\n"
    "  end)\n"
    "  y:register_hook(function(g) return y and g end)\n"
    "  y.grad_fn.metadata.of = y\n"
    "  put(0, pass_on(y))\n"
    "  collectgarbage()\n"
    "  return 'given'\n"
    "end\n"
    "function receive()\n"
    "  local y = taken(take(1))\n"
    "  local ok, err = pcall(function() y:sum():backward() end)\n"
    "  local z = (y.data * 2):sum():item()\n"
    "  y = nil\n"
    "  collectgarbage() collectgarbage()\n"
    "  return tostring(ok) .. ' ' .. tostring(err):match('another Lua state') .. (' "
    "%.3f'):format(z)\n"
    "end\n";

/* nest(seed): a training step whose hooks and modes call another state in the middle, if there is one. */
static const char nesting[] =
    "function nest(seed)\n"
    "  moth.manual_seed(seed)\n"
    "  local drop, out, seen = nn.Dropout(0.5), {}, 0\n"
    "  local w = moth.randn(8, 8, { requires_grad = true })\n"
    "  local again = moth.autograd.Function { forward = function(ctx, x) return x * 1 end,\n"
    "    backward = function(_, g) if other then other(seed + 1) end return g * "
    "moth.rand(1):item() end }\n"
    "  local loss = moth.dispatch_mode(function(func, args)\n"
    "    seen = seen + 1\n"
    "    if other and seen == 2 then other(seed + 1) end\n"
    "    return func(unpack(args, 1, args.n))\n"
    "  end, function() return drop(again(drop(w:exp()))):sum() end)\n"
    "  loss:backward()\n"
    "  local written = moth.zeros(2)\n"
    "  moth.dispatch_mode(function(func, args)\n"
    "    seen = seen + 1\n"
    "    return func(unpack(args, 1, args.n))\n"
    "  end, function()\n"
    "    for _ = 1, 100 do if other then other(seed) end written[2] = 1 end\n"
    "  end)\n"
    "  return ('%d %.17g %.17g'):format(seen, loss:item(), drop(w.grad):sum():item())\n"
    "end\n";

static lua_State *second;
static int run_second(lua_State *L) {
  lua_getglobal(second, "run");
  lua_pushinteger(second, lua_tointeger(L, 1));
  if (lua_pcall(second, 1, 1, 0))
    return luaL_error(L, "the other state: %s", lua_tostring(second, -1));
  lua_pop(second, 1);
  return 0;
}

/* Pointers on their way from state i to state 1 - i. */
static struct Lane {
  pthread_mutex_t lock;
  pthread_cond_t some;
  double list[64];
  int n;
} lanes[2] = {{PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {0}, 0},
              {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {0}, 0}};

static int put(lua_State *L) { /* (from, pointer) */
  struct Lane *lane = &lanes[1 - lua_tointeger(L, 1)];
  pthread_mutex_lock(&lane->lock);
  lane->list[lane->n++] = lua_tonumber(L, 2);
  pthread_cond_signal(&lane->some);
  pthread_mutex_unlock(&lane->lock);
  return 0;
}

static int take(lua_State *L) { /* (to) -> pointer */
  struct Lane *lane = &lanes[lua_tointeger(L, 1)];
  pthread_mutex_lock(&lane->lock);
  while (lane->n == 0)
    pthread_cond_wait(&lane->some, &lane->lock);
  double first = lane->list[0];
  memmove(lane->list, lane->list + 1, sizeof *lane->list * (size_t)--lane->n);
  pthread_mutex_unlock(&lane->lock);
  lua_pushnumber(L, first);
  return 1;
}

static void fail(const char *what, const char *detail) {
  fprintf(stderr, "%s: %s\n", what, detail);
  exit(1);
}

static lua_State *open_state(volatile sig_atomic_t *flag) {
  lua_State *L = luaL_newstate();
  luaL_openlibs(L);
  if (flag) {
    lua_pushlightuserdata(L, (void *)flag);
    lua_setfield(L, LUA_REGISTRYINDEX, "moth.interrupt");
  }
  char *text = malloc(sizeof program + sizeof busy + sizeof nesting);
  strcat(strcat(strcpy(text, program), busy), nesting);
  if (luaL_loadstring(L, text) || lua_pcall(L, 0, 0, 0))
    fail("opening", lua_tostring(L, -1));
  free(text);
  return L;
}

static int call(lua_State *L, const char *function, int argument, char *out) {
  lua_getglobal(L, function);
  lua_pushinteger(L, argument);
  int status = lua_pcall(L, 1, 1, 0);
  snprintf(out, TEXT, "%s", lua_tostring(L, -1) ? lua_tostring(L, -1) : "");
  lua_pop(L, 1);
  return status;
}

static void expect(lua_State *L, const char *function, int argument, const char *want) {
  char got[TEXT];
  if (call(L, function, argument, got) || strcmp(got, want) != 0) {
    fprintf(stderr, "%s(%d): expected %s\n", function, argument, want);
    fail("got", got);
  }
}

static char alone[STATES][TEXT];

static void *train(void *arg) {
  int seed = (int)(intptr_t)arg;
  lua_State *L = open_state(NULL);
  expect(L, "run", seed, alone[seed]);
  expect(L, "run", seed, alone[seed]);
  lua_close(L);
  return NULL;
}

static char exchanged[2][TEXT];

static void connect_lanes(lua_State *L) {
  lua_register(L, "put", put);
  lua_register(L, "take", take);
}

static void *train_on_others(void *arg) {
  int seed = (int)(intptr_t)arg;
  for (int i = 0; i < 3; i++) {
    lua_State *L = open_state(NULL);
    connect_lanes(L);
    expect(L, "exchange", seed, exchanged[seed]);
    lua_close(L);
  }
  return NULL;
}

static void *give(void *arg) {
  lua_State *L = open_state(NULL);
  connect_lanes(L);
  expect(L, "give", 0, "given");
  lua_close(L);
  return arg;
}

int main(void) {
  char text[TEXT];
  for (int i = 0; i < STATES; i++) {
    lua_State *L = open_state(NULL);
    if (call(L, "run", i, alone[i]))
      fail("run", alone[i]);
    lua_close(L);
  }

  pthread_t threads[STATES];
  for (int i = 0; i < STATES; i++)
    pthread_create(&threads[i], NULL, train, (void *)(intptr_t)i);
  for (int i = 0; i < STATES; i++)
    pthread_join(threads[i], NULL);

  for (int i = 0; i < 2; i++) {
    lua_State *L = open_state(NULL);
    if (call(L, "exchange", i, exchanged[i]))
      fail("exchange", exchanged[i]);
    lua_close(L);
  }
  for (int i = 0; i < 2; i++)
    pthread_create(&threads[i], NULL, train_on_others, (void *)(intptr_t)i);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);

  /* What one leaves behind: its state is closed, in this thread or another, before the other drops it. */
  lua_State *other = open_state(NULL);
  connect_lanes(other);
  for (int i = 0; i < 4; i++) {
    if (i % 2) {
      pthread_create(&threads[0], NULL, give, NULL);
      pthread_join(threads[0], NULL);
    } else {
      give(NULL);
    }
    expect(other, "receive", 0, "false another Lua state 32.619");
  }
  lua_close(other);

  /* In one thread, in turn. */
  volatile sig_atomic_t flag_a = 0, flag_b = 0;
  lua_State *a = open_state(&flag_a), *b = open_state(&flag_b);
  for (int i = 0; i < 3; i++) {
    call(a, "keep", 0, text);
    call(b, "keep", 0, text);
    call(a, "drop", 0, text);
    expect(b, "use", 0, "18");
    call(b, "drop", 0, text);
    expect(a, "use", 0, "18");
    expect(a, "run", 1, alone[1]);
    expect(b, "run", 2, alone[2]);
  }
  for (int i = 0; i < 3; i++) { /* modes of one's coroutine are not the other's */
    call(a, "enter", 0, text);
    expect(b, "recording", 0, "true");
    expect(a, "recording", 0, "true");
    call(b, "enter", 0, text);
    expect(a, "leave", 0, "false");
    expect(a, "recording", 0, "true");
    expect(b, "leave", 0, "false");
    expect(b, "recording", 0, "true");
  }
  char nested[TEXT];
  if (call(a, "nest", 3, nested))
    fail("nest", nested);
  second = b;
  lua_register(a, "other", run_second);
  expect(a, "nest", 3, nested);
  flag_b = 1;
  expect(a, "spin", 0, "spun");
  if (!call(b, "spin", 0, text) || !strstr(text, "interrupted") || flag_b)
    fail("the flag of b", text);
  flag_a = 1;
  expect(b, "spin", 0, "spun");
  if (!call(a, "spin", 0, text) || !strstr(text, "interrupted"))
    fail("the flag of a", text);

  /* A state goes on in another thread, and its values outlive it in none. */
  call(a, "keep", 0, text);
  lua_close(b);
  expect(a, "use", 0, "18");
  lua_close(a);
  puts("ok");
  return 0;
}
