/* libedit is opened at run time: moth needs no package for it, and the prompt works without it. Uses its readline
 * interface; the names below are from <editline/readline.h>. */
#include "lua/launcher/edit.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>

enum { HISTORY_LINES = 5000 };

typedef char *Generator(const char *text, int state);
typedef char **Completer(const char *text, int start, int end);

static struct {
  bool tried, ready;
  char *(*readline)(const char *prompt);
  int (*add_history)(const char *line);
  int (*truncate_history)(const char *path, int lines);
  void (*stifle_history)(int lines);
  char **(*completion_matches)(const char *text, Generator *next);
  Completer **attempted_completion;
  int *attempted_completion_over, *catch_signals, *append_character;
  char **break_characters, **line;
  int (*insert_text)(const char *text);
} edit;

static lua_State *host;
static int complete_ref = LUA_NOREF;
static char *history_path, *last_line;

/* candidates: the list on top of the Lua stack; state 0 starts. */
static char *next_candidate(const char *text, int state) {
  static int at;
  (void)text;
  if (state == 0)
    at = 0;
  if (!lua_istable(host, -1))
    return NULL;
  lua_rawgeti(host, -1, ++at);
  const char *word = lua_tostring(host, -1);
  char *copy = word ? strdup(word) : NULL;
  lua_pop(host, 1);
  return copy;
}

/* Lua finds the candidates: it gets the word and also the line up to the cursor, as brackets and quotes end a word. */
static char **complete(const char *text, int start, int end) {
  (void)start;
  if (complete_ref == LUA_NOREF || !lua_checkstack(host, 8))
    return NULL;
  /* A tab with more behind it was pasted, not typed: it stays what it is. */
  struct pollfd more = {.fd = STDIN_FILENO, .events = POLLIN};
  if (edit.insert_text && poll(&more, 1, 0) > 0) {
    *edit.attempted_completion_over = 1;
    edit.insert_text("\t");
    return NULL;
  }
  int top = lua_gettop(host);
  char **matches = NULL;
  lua_rawgeti(host, LUA_REGISTRYINDEX, complete_ref);
  lua_pushstring(host, text);
  lua_pushlstring(host, *edit.line, strnlen(*edit.line, (size_t)end));
  if (lua_pcall(host, 2, 1, 0) == 0)
    matches = edit.completion_matches(text, next_candidate);
  *edit.attempted_completion_over = 1;
  lua_settop(host, top);
  return matches;
}

static bool open_library(void) {
  if (edit.tried)
    return edit.ready;
  edit.tried = true;
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
    return false;
  /* Input is UTF-8 unless the environment sets another encoding; Lua itself uses no locale. */
  if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
    setlocale(LC_CTYPE, "C.UTF-8");
  void *lib = NULL;
  static const char *const names[] = {"libedit.so.2", "libedit.so.0", "libedit.so", NULL};
  for (int i = 0; names[i] && !lib; i++)
    lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!lib)
    return false;
  const struct {
    const char *name;
    void *to;
  } symbols[] = {{"readline", &edit.readline},
                 {"add_history", &edit.add_history},
                 {"history_truncate_file", &edit.truncate_history},
                 {"stifle_history", &edit.stifle_history},
                 {"rl_completion_matches", &edit.completion_matches},
                 {"rl_attempted_completion_function", &edit.attempted_completion},
                 {"rl_attempted_completion_over", &edit.attempted_completion_over},
                 {"rl_catch_signals", &edit.catch_signals},
                 {"rl_completion_append_character", &edit.append_character},
                 {"rl_completer_word_break_characters", &edit.break_characters},
                 {"rl_line_buffer", &edit.line},
                 {"rl_insert_text", &edit.insert_text}};
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void *p = dlsym(lib, symbols[i].name);
    if (!p) {
      dlclose(lib);
      return false;
    }
    memcpy(symbols[i].to, &p, sizeof p);
  }
  static char breaks[] = " \t\n\"\\'`@$><=;|&{}()[]+-*/%^#~,";
  *edit.catch_signals = 0; /* Ctrl-C is ours */
  *edit.attempted_completion = complete;
  *edit.append_character = 0;
  *edit.break_characters = breaks;
  edit.ready = true;
  return true;
}

static char *read_plain(const char *prompt, bool *interrupted) {
  char *line = NULL;
  size_t size = 0;
  for (const char *p = prompt; *p; p++)
    if (*p != '\1' && *p != '\2')
      putchar(*p);
  fflush(stdout);
  ssize_t n = getline(&line, &size, stdin);
  *interrupted = n < 0 && !feof(stdin);
  clearerr(stdin);
  if (n < 0) {
    free(line);
    return NULL;
  }
  if (n > 0 && line[n - 1] == '\n')
    line[n - 1] = 0;
  return line;
}

static volatile sig_atomic_t *interrupts;

char *edit_read_line(lua_State *L, const char *prompt, bool *interrupted) {
  host = L;
  if (!open_library())
    return read_plain(prompt, interrupted);
  fflush(stdout);
  int before = interrupts ? *interrupts : 0;
  char *line = edit.readline(prompt);
  *interrupted = !line && interrupts && *interrupts != before;
  return line;
}

void edit_count_interrupts(volatile sig_atomic_t *count) {
  interrupts = count;
}

/* The history file is plain text, one entry per line. */
static void read_history(const char *path) {
  FILE *file = fopen(path, "r");
  char *line = NULL;
  size_t size = 0;
  for (ssize_t n; file && (n = getline(&line, &size, file)) > 0;) {
    line[n - (line[n - 1] == '\n')] = 0;
    edit.add_history(line);
  }
  free(line);
  if (file)
    fclose(file);
}

/* Appends at once, so that a crash loses nothing, and after the lines of other prompts. */
static void append_history(const char *path, const char *line) {
  int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0)
    return;
  FILE *file = fdopen(fd, "a");
  if (file) {
    fprintf(file, "%s\n", line);
    fclose(file);
  } else {
    close(fd);
  }
}

int edit_start(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  const char *path = luaL_optstring(L, 2, NULL);
  lua_pushvalue(L, 1);
  complete_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  if (!open_library())
    return 0;
  edit.stifle_history(HISTORY_LINES);
  if (path) {
    history_path = strdup(path);
    edit.truncate_history(path, HISTORY_LINES);
    read_history(path);
  }
  return 0;
}

int edit_add_history(lua_State *L) {
  const char *line = luaL_checkstring(L, 1);
  if (!edit.ready || (last_line && !strcmp(last_line, line)))
    return 0;
  free(last_line);
  last_line = strdup(line);
  edit.add_history(line);
  if (history_path)
    append_history(history_path, line);
  return 0;
}

int edit_stop(lua_State *L) {
  luaL_unref(L, LUA_REGISTRYINDEX, complete_ref);
  complete_ref = LUA_NOREF;
  free(history_path);
  free(last_line);
  history_path = last_line = NULL;
  return 0;
}
