/* Several Lua states in one process: each trains in a thread of its own at once, with hooks, a seed, a dtype and a
 * number of threads of its own, and gets what it gets alone; and two in one thread, in turn, with values of one
 * let go of while the other runs. Prints "ok" and returns 0, or what was wrong. */
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
    "function spin() local x = moth.ones(3) for i = 1, 10 do x = x + 0 end return 'spun' end\n";

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
  if (luaL_loadstring(L, program) || lua_pcall(L, 0, 0, 0))
    fail("opening", lua_tostring(L, -1));
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
