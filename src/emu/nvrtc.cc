#include "emu/nvrtc.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "emu/emu.h"

#ifndef MOTH_EMU_SOURCE /* the tree that this was built from, and the flags that its sanitizers need */
#define MOTH_EMU_SOURCE "."
#endif
#ifndef MOTH_EMU_FLAGS
#define MOTH_EMU_FLAGS ""
#endif

extern char **environ;

struct MothEmuProgram {
  std::string source, name, log, image;
  std::vector<std::pair<std::string, std::string>> headers; /* name, text */
  std::vector<std::string> expressions;
  bool compiled = false;
};

namespace {

bool write_file(const std::string &path, const std::string &text) {
  FILE *f = fopen(path.c_str(), "wb");
  if (!f)
    return false;
  bool good = fwrite(text.data(), 1, text.size(), f) == text.size();
  return fclose(f) == 0 && good;
}
bool read_file(const std::string &path, std::string *text) {
  FILE *f = fopen(path.c_str(), "rb");
  char buffer[65536];
  if (!f)
    return false;
  text->clear();
  while (size_t n = fread(buffer, 1, sizeof buffer, f))
    text->append(buffer, n);
  fclose(f);
  return true;
}

/* A folder for one compilation; removed with its contents. */
struct Folder {
  std::string path;
  Folder() {
    const char *tmp = getenv("TMPDIR");
    std::string pattern = std::string(tmp && *tmp ? tmp : "/tmp") + "/moth_rtc_XXXXXX";
    if (mkdtemp(pattern.data()))
      path = pattern;
  }
  static void remove(const std::string &path) {
    if (DIR *dir = opendir(path.c_str())) {
      while (const dirent *e = readdir(dir))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
          remove(path + "/" + e->d_name);
      closedir(dir);
      rmdir(path.c_str());
    } else {
      unlink(path.c_str());
    }
  }
  ~Folder() {
    if (!path.empty())
      remove(path);
  }
  Folder(const Folder &) = delete;
  /* A file below it, "a/b.h" in a folder of its own. Names that leave the folder are refused. */
  bool put(const std::string &name, const std::string &text) {
    if (name.empty() || name[0] == '/' || name.find("..") != std::string::npos)
      return false;
    for (size_t i = name.find('/'); i != std::string::npos; i = name.find('/', i + 1))
      mkdir((path + "/" + name.substr(0, i)).c_str(), 0700);
    return write_file(path + "/" + name, text);
  }
};

/* Runs a command in a folder, its output to a file there; -1: it could not be started. */
int run(const std::vector<std::string> &command, const std::string &folder,
        const std::string &output) {
  std::vector<char *> argv;
  for (const std::string &a : command)
    argv.push_back(const_cast<char *>(a.c_str()));
  argv.push_back(nullptr);
  std::vector<char *> env; /* the compiler must not preload a sanitizer */
  for (char **e = environ; *e; e++)
    if (strncmp(*e, "LD_PRELOAD=", 11) != 0)
      env.push_back(*e);
  env.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid;
  int e = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  int status = -1;
  while (e == 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
    ;
  return e ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

std::string own_path(void) {
  Dl_info info;
  return dladdr(reinterpret_cast<const void *>(&own_path), &info) && info.dli_fname ? info.dli_fname
                                                                                    : "";
}

std::string base_name(const std::string &path) {
  return path.substr(path.rfind('/') + 1);
}

/* The source as g++ takes it, with the table of kernels behind it. */
std::string whole_source(const MothEmuProgram &p, const std::string &name) {
  static const std::regex dynamic(
      R"(extern\s+__shared__\s+(?:__align__\s*\([^)]*\)\s*)?([A-Za-z_][\w:<> ]*?)\s+(\w+)\s*\[\s*\]\s*;)");
  std::string text =
      std::regex_replace(p.source, dynamic, "$1 *$2 = static_cast<$1 *>(moth_emu_shared());");
  std::string out = "#include \"emu/rtc.h\"\n#line 1 \"" + name + "\"\n" + text +
                    "\n#line 1 \"name expression\"\n";
  out += "extern \"C\" __attribute__((visibility(\"default\"))) const MothEmuEntry "
         "moth_emu_entries[] = {\n";
  for (const std::string &e : p.expressions)
    out += "MothEmuKernel<(" + e + ")>::entry(R\"rtc(" + e + ")rtc\"),\n";
  return out + "{nullptr, nullptr, 0, nullptr, nullptr}};\n";
}

} // namespace

const char *nvrtcGetErrorString(nvrtcResult result) {
  switch (result) {
  case NVRTC_SUCCESS:
    return "NVRTC_SUCCESS";
  case NVRTC_ERROR_OUT_OF_MEMORY:
    return "NVRTC_ERROR_OUT_OF_MEMORY";
  case NVRTC_ERROR_PROGRAM_CREATION_FAILURE:
    return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
  case NVRTC_ERROR_INVALID_INPUT:
    return "NVRTC_ERROR_INVALID_INPUT";
  case NVRTC_ERROR_INVALID_PROGRAM:
    return "NVRTC_ERROR_INVALID_PROGRAM";
  case NVRTC_ERROR_COMPILATION:
    return "NVRTC_ERROR_COMPILATION";
  case NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION:
    return "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
  case NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID:
    return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
  }
  return "NVRTC_ERROR unknown";
}
nvrtcResult nvrtcVersion(int *major, int *minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name,
                               int nheaders, const char *const *headers,
                               const char *const *header_names) {
  if (!program || !source || nheaders < 0 || (nheaders && (!headers || !header_names)))
    return NVRTC_ERROR_INVALID_INPUT;
  MothEmuProgram *p = new MothEmuProgram;
  p->source = source;
  p->name = name ? name : "default_program";
  for (int i = 0; i < nheaders; i++)
    p->headers.emplace_back(header_names[i], headers[i]);
  *program = p;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
  if (!program || !*program)
    return NVRTC_ERROR_INVALID_PROGRAM;
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcAddNameExpression(nvrtcProgram p, const char *expression) {
  if (!p)
    return NVRTC_ERROR_INVALID_PROGRAM;
  p->expressions.push_back(expression);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int noptions, const char *const *options) {
  Folder folder;
  const char *source = getenv("MOTH_CUDA_EMU_SOURCE");
  if (!p)
    return NVRTC_ERROR_INVALID_PROGRAM;
  if (folder.path.empty())
    return NVRTC_ERROR_PROGRAM_CREATION_FAILURE;
  std::string root = source && *source ? source : MOTH_EMU_SOURCE, here = own_path();
  std::string name = base_name(p->name), out = folder.path + "/moth.so";
  std::vector<std::string> command = {
      "g++",
      "-std=c++20",
      "-O1",
      "-g1",
      "-fPIC",
      "-shared",
      "-fvisibility=hidden",
      "-fwrapv",
      "-fno-strict-aliasing",
      "-w",
      "-iquote" + folder.path,
      "-idirafter" + folder.path, /* last: a given header may be named like one of the system */
      "-I" + root,
      "-I" + root + "/src"};
  for (std::string flags = MOTH_EMU_FLAGS; !flags.empty();) {
    size_t end = flags.find(' ');
    if (end != 0)
      command.push_back(flags.substr(0, end));
    flags = end == std::string::npos ? "" : flags.substr(end + 1);
  }
  for (int i = 0; i < noptions; i++)
    if (!strncmp(options[i], "-D", 2) || !strncmp(options[i], "-I", 2))
      command.push_back(options[i]);
  command.insert(command.end(), {"-x", "c++", "source.cu", "-x", "none", here,
                                 "-Wl,-rpath," + here.substr(0, here.rfind('/')), "-o", out});
  bool good = folder.put("source.cu", whole_source(*p, name));
  for (const auto &h : p->headers)
    good = good && folder.put(h.first, h.second);
  if (!good)
    return NVRTC_ERROR_PROGRAM_CREATION_FAILURE;
  int status = run(command, folder.path, folder.path + "/log");
  read_file(folder.path + "/log", &p->log);
  if (status < 0)
    p->log = "g++ cannot be started";
  if (status != 0)
    return NVRTC_ERROR_COMPILATION;
  if (!read_file(out, &p->image))
    return NVRTC_ERROR_PROGRAM_CREATION_FAILURE;
  p->compiled = true;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetLoweredName(nvrtcProgram p, const char *expression, const char **lowered) {
  if (!p->compiled)
    return NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION;
  for (const std::string &e : p->expressions)
    if (e == expression) {
      *lowered = e.c_str();
      return NVRTC_SUCCESS;
    }
  return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *n) {
  *n = p->log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *log) {
  memcpy(log, p->log.c_str(), p->log.size() + 1);
  return NVRTC_SUCCESS;
}
/* The image begins with its size. */
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *n) {
  *n = p->compiled ? sizeof(uint64_t) + p->image.size() : 0;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *cubin) {
  uint64_t n = p->image.size();
  memcpy(cubin, &n, sizeof n);
  memcpy(cubin + sizeof n, p->image.data(), n);
  return NVRTC_SUCCESS;
}

/* --- loading ------------------------------------------------------------------------------------- */

struct MothEmuLibrary {
  void *handle;
  const MothEmuEntry *entries;
};

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, cudaJitOption *, void **,
                                unsigned, cudaLibraryOption *, void **, unsigned) {
  uint64_t n;
  memcpy(&n, code, sizeof n);
  Folder folder;
  std::string path = folder.path + "/moth.so";
  if (folder.path.empty() ||
      !write_file(path, std::string(static_cast<const char *>(code) + sizeof n, n)))
    return moth_emu_note(cudaErrorInvalidKernelImage);
  void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto entries = handle ? (const MothEmuEntry *)dlsym(handle, "moth_emu_entries") : nullptr;
  if (!entries) {
    moth_emu_say("%s", dlerror());
    return moth_emu_note(cudaErrorInvalidKernelImage);
  }
  *library = new MothEmuLibrary{handle, entries};
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  for (const MothEmuEntry *e = library->entries; e->name; e++)
    if (!strcmp(e->name, name)) {
      *kernel = e;
      return cudaSuccess;
    }
  return moth_emu_note(cudaErrorSymbolNotFound);
}
/* The code stays loaded: queued work may still call it. */
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  delete library;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *func, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream) {
  const MothEmuEntry *e = static_cast<const MothEmuEntry *>(func);
  struct Values {
    std::vector<std::unique_ptr<max_align_t[]>> memory;
    std::vector<void *> at;
  };
  auto values = std::make_shared<Values>();
  for (int i = 0; i < e->nparams; i++) {
    size_t n = (e->sizes[i] + sizeof(max_align_t) - 1) / sizeof(max_align_t);
    values->memory.emplace_back(new max_align_t[n]);
    memcpy(values->memory.back().get(), args[i], e->sizes[i]);
    values->at.push_back(values->memory.back().get());
  }
  return moth_emu_launch(
      e->name, [=]() { e->run(values->at.data()); }, grid, block, shared, stream, e);
}
