/* The `moth` command: LuaJIT with moth's modules in its path.
 *
 * It is a Lua host like any other: it links libluajit (moth_lua.so finds the Lua symbols there), finds the
 * modules relative to its own path, runs the command line, and closes the state. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lua/launcher/edit.h"
#include "moth.h"

#include <lauxlib.h>
#include <lua.h>
#include <luajit.h>
#include <lualib.h>

enum { PATH_SIZE = 4096 };

typedef struct Command {
  int argc;
  char **argv;
  int status;
  bool profiles;
} Command;

/* ---- calling Lua ------------------------------------------------------------------------------
 */

static lua_State *running; /* the state that Ctrl-C stops */
static volatile sig_atomic_t interrupt;
static volatile sig_atomic_t was_interrupted; /* the call that runs, or ran last */

static void interrupt_hook(lua_State *L, lua_Debug *where) {
  (void)where;
  interrupt = 0;
  lua_sethook(L, NULL, 0, 0);
  luaL_error(L, "interrupted");
}

static void ignore_sample(void *data, lua_State *L, int samples, int state) {
  (void)data, (void)L, (void)samples, (void)state;
}

static bool at_prompt; /* running typed input: ending the process would lose its variables */

/* Compiled loops see no hooks, but LuaJIT's profiler stops them: it has them look for its signal at each line. So it is
 * on, with a timer that does not run out; what that costs was not measurable in loops that call anything. */
static void start_profiler(lua_State *L) {
  luaJIT_profile_start(L, "li100000000", ignore_sample, NULL);
}

static void stop_compiled_loop(void) {
  struct sigaction action;
  if (sigaction(SIGPROF, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
    raise(SIGPROF);
}

/* The first Ctrl-C stops Lua at its next instruction, and moth in its op. The second one ends the process; at a prompt
 * it warns, and the third one does. */
static void on_interrupt(int signal_number) {
  static const char warning[] =
      "\n(a library's call cannot be stopped before it returns; Ctrl-C again ends moth)\n";
  bool warn = at_prompt && interrupt;
  if (!at_prompt || interrupt)
    signal(signal_number, SIG_DFL);
  if (warn && write(STDERR_FILENO, warning, sizeof warning - 1) < 0)
    return;
  interrupt = was_interrupted = 1;
  stop_compiled_loop();
  lua_sethook(running, interrupt_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static volatile sig_atomic_t prompt_interrupts;

static void on_interrupt_at_prompt(int signal_number) {
  (void)signal_number;
  prompt_interrupts = (prompt_interrupts + 1) & 0xffff;
}

/* Handlers run on a separate stack: oneDNN's product (version 2.6, AVX-512) uses the stack pointer for other data,
 * and a handler on the normal stack would overwrite the heap. No SA_RESTART: a read at the prompt must end. */
static void catch_interrupts(void (*handler)(int)) {
  static char handlers_stack[1 << 16];
  stack_t stack = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
  sigaltstack(&stack, NULL);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
}

/* What to write instead, for mistakes whose message LuaJIT makes. */
static void add_hint(lua_State *L) {
  lua_getglobal(L, "require");
  lua_pushliteral(L, "moth.lang.hints");
  if (lua_pcall(L, 1, 1, 0) == 0) {
    lua_getfield(L, -1, "of");
    lua_pushvalue(L, 1);
    if (lua_pcall(L, 1, 1, 0) == 0 && lua_isstring(L, -1)) {
      lua_pushvalue(L, 1);
      lua_insert(L, -2);
      lua_concat(L, 2);
      lua_replace(L, 1);
    }
  }
  lua_settop(L, 1);
}

static int add_traceback(lua_State *L) {
  if (!lua_isstring(L, 1)) {
    if (!luaL_callmeta(L, 1, "__tostring") || !lua_isstring(L, -1))
      lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
    lua_replace(L, 1);
  }
  lua_settop(L, 1);
  add_hint(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, "moth.lang.trace");
  if (lua_istable(L, -1)) { /* frames of an error that moth has caught and rethrown */
    lua_getfield(L, -1, "pending");
    if (lua_pcall(L, 0, 1, 0) == 0 && lua_isstring(L, -1)) {
      lua_pushvalue(L, 1);
      lua_pushliteral(L, "\n");
      lua_pushvalue(L, -3);
      lua_concat(L, 3);
      return 1;
    }
  }
  lua_settop(L, 1);
  luaL_traceback(L, L, lua_tostring(L, 1), 1);
  return 1;
}

/* Calls the function below nargs arguments. Results, or an error with its traceback, are left. */
static int call(lua_State *L, int nargs, int nresults) {
  int base = lua_gettop(L) - nargs;
  lua_pushcfunction(L, add_traceback);
  lua_insert(L, base);
  running = L;
  was_interrupted = 0;
  catch_interrupts(on_interrupt);
  int status = lua_pcall(L, nargs, nresults, base);
  catch_interrupts(SIG_DFL);
  lua_sethook(L, NULL, 0, 0); /* Ctrl-C may have come too late to be seen */
  interrupt = 0;
  lua_remove(L, base);
  return status;
}

/* Prints the error on the stack, unless status is 0. */
static int report(lua_State *L, int status) {
  if (status == 0)
    return 0;
  const char *message = lua_tostring(L, -1);
  fflush(stdout);
  fprintf(stderr, "moth: %s\n", message ? message : "(no error message)");
  lua_pop(L, 1);
  return status;
}

/* ---- where the modules are --------------------------------------------------------------------
 */

static void prepend(lua_State *L, const char *field, const char *text) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, field);
  lua_pushfstring(L, "%s;%s", text, lua_isstring(L, -1) ? lua_tostring(L, -1) : "");
  lua_setfield(L, -3, field);
  lua_pop(L, 2);
}

static bool is_there(lua_State *L, const char *dir, const char *name) {
  bool found = access(lua_pushfstring(L, "%s/%s", dir, name), R_OK) == 0;
  lua_pop(L, 1);
  return found;
}

/* PREFIX/bin/moth has PREFIX/share/lua/5.1 and PREFIX/lib/lua/5.1 beside it; a build folder holds
 * the libraries and gen/ itself, and lua/ is one or two floors up (build/, build/asan/), or where its link `lua` leads
 * (make B=/elsewhere). */
static void set_paths(lua_State *L) {
  char dir[PATH_SIZE];
  ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
  if (n <= 0)
    return;
  dir[n] = 0;
  char *slash = strrchr(dir, '/');
  if (!slash)
    return;
  *slash = 0;
  if (is_there(L, dir, "../share/lua/5.1/moth")) {
    prepend(
        L, "path",
        lua_pushfstring(L, "%s/../share/lua/5.1/?.lua;%s/../share/lua/5.1/?/init.lua", dir, dir));
    prepend(L, "cpath", lua_pushfstring(L, "%s/../lib/lua/5.1/?.so", dir));
  } else {
    char lua[PATH_SIZE]; /* without "..": errors name files in it */
    const char *up = is_there(L, dir, "../lua/moth")      ? "%s/../lua"
                     : is_there(L, dir, "../../lua/moth") ? "%s/../../lua"
                                                          : "%s/lua";
    if (!realpath(lua_pushfstring(L, up, dir), lua))
      lua[0] = 0;
    lua_pop(L, 1);
    prepend(L, "path", lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;%s/gen/?.lua", lua, lua, dir));
    prepend(L, "cpath", lua_pushfstring(L, "%s/?.so", dir));
  }
  lua_pop(L, 2);
}

/* ---- running ----------------------------------------------------------------------------------
 */

static int require(lua_State *L, const char *module) {
  lua_getglobal(L, "require");
  lua_pushstring(L, module);
  int status = call(L, 1, 1);
  if (status == 0) {
    const char *dot = strrchr(module, '.');
    lua_setglobal(L, dot ? dot + 1 : module);
  }
  return report(L, status);
}

static int run_code(lua_State *L, const char *code) {
  int status = luaL_loadbuffer(L, code, strlen(code), "=(command line)");
  return report(L, status ? status : call(L, 0, 0));
}

/* off, on, flush: functions of jit; else the start function of jit.p, jit.v, jit.dump. */
static int jit_command(lua_State *L, const char *command) {
  static const char code[] =
      "local name, rest = (...):match('^(%w+)=?(.*)$')\n"
      "if not name then error('-j: expected a command such as off or p=fl', 0) end\n"
      "local list = {}\n"
      "for word in rest:gmatch('[^,]+') do list[#list + 1] = word end\n"
      "if name == 'on' or name == 'off' or name == 'flush' then return "
      "jit[name](tonumber(list[1])) end\n"
      "local found, module = pcall(require, 'jit.' .. name)\n"
      "if not found or not module.start then error('-j: LuaJIT has no command ' .. name, 0) end\n"
      "module.start(unpack(list))";
  int status = luaL_loadbuffer(L, code, sizeof code - 1, "=(command line)");
  lua_pushstring(L, command);
  return report(L, status ? status : call(L, 1, 0));
}

/* Runs a file (NULL: standard input) with the rest of the command line as its arguments. */
static int run_script(lua_State *L, const char *file, int argc, char **argv) {
  int status = luaL_loadfile(L, file);
  if (status == 0) {
    luaL_checkstack(L, argc + 3, "too many arguments");
    for (int i = 0; i < argc; i++)
      lua_pushstring(L, argv[i]);
    status = call(L, argc, 0);
  }
  return report(L, status);
}

/* Calls start(path) or finish() of moth.profiler.script. */
static int profiler(lua_State *L, const char *name, const char *path) {
  lua_getglobal(L, "require");
  lua_pushliteral(L, "moth.profiler.script");
  int status = call(L, 1, 1);
  if (status == 0) {
    lua_getfield(L, -1, name);
    lua_remove(L, -2);
    if (path)
      lua_pushstring(L, path);
    status = call(L, path ? 1 : 0, 0);
  }
  return report(L, status);
}

/* The module of all commands; they and their options are declared there. */
static const char commands[] = "moth.cli.commands";

/* Whether argv[0] is mothrun, another name of `moth run`. */
static bool is_mothrun(int argc, char **argv) {
  const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
  return argc > 0 && strcmp(slash ? slash + 1 : argv[0], "mothrun") == 0;
}

/* Whether a word is a command's: small letters alone, and known to the module. Any other is a script. */
static bool is_command(lua_State *L, const char *word) {
  if (!*word || word[strspn(word, "abcdefghijklmnopqrstuvwxyz")])
    return false;
  lua_getglobal(L, "require");
  lua_pushstring(L, commands);
  bool has = false;
  if (lua_pcall(L, 1, 1, 0) == 0) {
    lua_getfield(L, -1, "has");
    lua_pushstring(L, word);
    has = lua_pcall(L, 1, 1, 0) == 0 && lua_toboolean(L, -1);
  }
  lua_settop(L, 0);
  return has;
}

static const luaL_Reg host_functions[];

/* Runs the command `word` with the words from `first` on, and in `host` the functions of the prompt; returns the exit
 * code. */
static int run_command_of(lua_State *L, const char *word, int argc, char **argv, int first) {
  lua_getglobal(L, "require");
  lua_pushstring(L, commands);
  int status = call(L, 1, 1);
  if (status == 0) {
    lua_getfield(L, -1, "command");
    lua_createtable(L, argc, 0);
    lua_pushstring(L, word);
    lua_rawseti(L, -2, 0);
    for (int i = first; i < argc; i++) {
      lua_pushstring(L, argv[i]);
      lua_rawseti(L, -2, i - first + 1);
    }
    lua_newtable(L);
    luaL_register(L, NULL, host_functions);
    lua_setfield(L, -2, "host");
    status = call(L, 1, 1);
  }
  int code = status == 0 ? (int)lua_tointeger(L, -1) : 1;
  report(L, status);
  return code;
}

/* ---- the prompt -------------------------------------------------------------------------------
 * Runs moth.repl, with line editing (edit.c) and calls that Ctrl-C stops. */

static int host_read_line(lua_State *L) {
  const char *prompt_text = luaL_checkstring(L, 1);
  bool interrupted;
  at_prompt = true;
  edit_count_interrupts(&prompt_interrupts);
  catch_interrupts(on_interrupt_at_prompt);
  char *line = edit_read_line(L, prompt_text, &interrupted);
  catch_interrupts(SIG_DFL);
  if (line) {
    lua_pushstring(L, line);
    free(line);
    return 1;
  }
  if (isatty(STDIN_FILENO))
    putchar('\n');
  if (interrupted)
    lua_pushboolean(L, false);
  else
    lua_pushnil(L);
  return 1;
}

/* call(f): true and its results, or false and the message with a traceback. */
static int host_call(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_State *before = running;
  int status = call(L, 0, LUA_MULTRET);
  running = before;
  lua_pushboolean(L, status == 0);
  lua_insert(L, 1);
  return lua_gettop(L);
}

static const luaL_Reg host_functions[] = {
    {"read_line", host_read_line},     {"call", host_call}, {"start", edit_start},
    {"add_history", edit_add_history}, {"stop", edit_stop}, {NULL, NULL}};

static int prompt(lua_State *L) {
  lua_getglobal(L, "require");
  lua_pushliteral(L, "moth.repl");
  int status = lua_pcall(L, 1, 1, 0);
  if (status == 0) {
    lua_getfield(L, -1, "run");
    lua_newtable(L);
    luaL_register(L, NULL, host_functions);
    status = lua_pcall(L, 1, 0, 0);
  }
  return report(L, status);
}

/* ---- the command line -------------------------------------------------------------------------
 */

/* arg[0] is the script, arg[1] … its arguments, arg[-1] … the words before it. */
static void set_arg(lua_State *L, int argc, char **argv, int script) {
  lua_createtable(L, argc, 1);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - script);
  }
  lua_setglobal(L, "arg");
}

/* The file of --profile=file, "" of --profile; NULL: another option. */
static const char *profile_path(const char *option) {
  static const char name[] = "--profile";
  size_t n = sizeof name - 1;
  if (strncmp(option, name, n) != 0 || (option[n] && option[n] != '='))
    return NULL;
  return option + n + (option[n] == '=');
}

/* The command of -jcmd; "" of -j, which has it in the next word; NULL: another option. */
static const char *jit_word(const char *option) {
  return option[1] == 'j' ? option + 2 : NULL;
}

/* The index of the first argument that is not an option, or argc. *done: an option that only prints was handled.
 * *asked: the index of --help, or of an option that is wrong, of which Lua speaks. */
static int find_script(int argc, char **argv, bool *done, int *asked) {
  int i = 1;
  for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
    const char *option = argv[i];
    if (strcmp(option, "--version") == 0 || strcmp(option, "-v") == 0) {
      printf("moth %s (%s)\n", MOTH_VERSION, LUAJIT_VERSION);
      *done = true;
      return i;
    }
    if (strcmp(option, "--") == 0)
      return i + 1;
    const char *jit = jit_word(option);
    if (strcmp(option, "-i") == 0 || profile_path(option) || (jit && *jit))
      continue;
    bool takes = strcmp(option, "-e") == 0 || strcmp(option, "-l") == 0 || jit;
    if (!takes || i + 1 >= argc) {
      *asked = i;
      return i;
    }
    i++;
  }
  return i;
}

/* Runs what the command line says; command->status is 0 if all of it went well. */
static void run_all(lua_State *L, Command *command) {
  int argc = command->argc;
  char **argv = command->argv;
  bool done = false, interactive = false, has_code = false, has_moth = false;
  lua_settop(L, 0);
  bool is_run = is_mothrun(argc, argv);
  int asked = 0, script = is_run ? argc : find_script(argc, argv, &done, &asked);
  if (done) {
    command->status = 0;
    return;
  }

  lua_gc(L, LUA_GCSTOP, 0);
  luaL_openlibs(L);
  lua_gc(L, LUA_GCRESTART, 0);
  lua_pushlightuserdata(L, (void *)&interrupt); /* the binding looks for it there: moth_lua.h */
  lua_setfield(L, LUA_REGISTRYINDEX, "moth.interrupt");
  set_paths(L);
  const char *word = is_run ? "run" : asked ? "" : NULL; /* "": the program itself */
  if (!word && script == 1 && argc > 1 && is_command(L, argv[1]))
    word = argv[1];
  set_arg(L, argc, argv, !word && script < argc ? script : 0);
  if (word) {
    command->status = run_command_of(L, word, asked ? asked + 1 : argc, argv,
                                     asked    ? asked
                                     : is_run ? 1
                                              : 2);
    return;
  }
  start_profiler(L);
  command->status = 1;
  for (int i = 1; i < script && argv[i][0] == '-'; i++) {
    bool is_code = strcmp(argv[i], "-e") == 0;
    if (strcmp(argv[i], "-i") == 0)
      interactive = true;
    if (profile_path(argv[i]) && !command->profiles) {
      if (profiler(L, "start", profile_path(argv[i])) != 0)
        return;
      command->profiles = true;
    }
    const char *jit = jit_word(argv[i]);
    if (jit && jit_command(L, *jit ? jit : argv[++i]) != 0)
      return;
    if (!is_code && (jit || strcmp(argv[i], "-l") != 0))
      continue;
    i++;
    if (is_code && !has_moth && require(L, "moth") != 0)
      return;
    has_moth = has_moth || is_code;
    has_code = has_code || is_code;
    if ((is_code ? run_code(L, argv[i]) : require(L, argv[i])) != 0)
      return;
  }
  if (script < argc || (!has_code && !interactive && !isatty(STDIN_FILENO))) {
    const char *file = script < argc && strcmp(argv[script], "-") != 0 ? argv[script] : NULL;
    int nargs = script < argc ? argc - script - 1 : 0;
    if (!has_moth && require(L, "moth") != 0)
      return;
    has_moth = true;
    if (run_script(L, file, nargs, argv + argc - nargs) != 0)
      return;
    has_code = true;
  }
  if (interactive || !has_code) {
    if (!has_moth)
      require(L, "moth"); /* the prompt works without it */
    if (prompt(L) != 0)
      return;
  }
  command->status = 0;
}

static int run_command(lua_State *L) {
  Command *command = lua_touserdata(L, 1);
  run_all(L, command);
  if (command->profiles && profiler(L, "finish", NULL) != 0)
    command->status = 1;
  return 0;
}

/* Whether who read standard output has gone, as `head -1` does, or has closed it: that is no error. */
static bool stdout_is_closed_pipe(void) {
  struct pollfd fd = {.fd = STDOUT_FILENO};
  return poll(&fd, 1, 0) > 0 && (fd.revents & (POLLERR | POLLNVAL));
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF,
          0); /* also into a pipe or a file: who reads it sees how far the program is */
  Command command = {.argc = argc, .argv = argv};
  lua_State *L = luaL_newstate();
  if (!L) {
    fputs("moth: not enough memory for a Lua state\n", stderr);
    return 1;
  }
  int status = lua_cpcall(L, run_command, &command);
  report(L, status);
  if (command.status && was_interrupted)
    command.status = 128 + SIGINT;
  lua_close(L);
  if ((fflush(stdout) != 0 || ferror(stdout)) && !stdout_is_closed_pipe()) {
    if (!status && !command.status) /* else the program has said what is wrong */
      fputs("moth: standard output could not be written to the end (is the disk full?)\n", stderr);
    return 1;
  }
  return status ? 1 : command.status;
}
