/* See shared.h.
 *
 * A __shared__ variable is a static of its function, and its declaration can run code but does not know the
 * variable's address: that is read from the symbol table of the library (or program), by the function's name.
 * Variables of another function of the same name may be included. */
#include "emu/shared.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "emu/cudaemu.h"
#include "emu/emu.h"

namespace {

struct Range {
  volatile unsigned char *p;
  size_t n;
};
struct Local {
  std::string name; /* mangled */
  Range range;
};
typedef std::vector<Local> Locals;

/* The statics of functions: their mangled names begin with _ZZ. */
Locals read_locals(const char *path, char *base) {
  Locals found;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0 || st.st_size < (off_t)sizeof(Elf64_Ehdr)) {
    if (fd >= 0)
      close(fd);
    return found;
  }
  size_t size = (size_t)st.st_size;
  void *map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (map == MAP_FAILED)
    return found;
  const char *file = (const char *)map;
  const Elf64_Ehdr *h = (const Elf64_Ehdr *)file;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(file + h->e_shoff);
  for (int i = 0; i < h->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB)
      continue;
    const Elf64_Sym *symbols = (const Elf64_Sym *)(file + sections[i].sh_offset);
    const char *names = file + sections[sections[i].sh_link].sh_offset;
    for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; k++) {
      const char *name = names + symbols[k].st_name;
      if (ELF64_ST_TYPE(symbols[k].st_info) == STT_OBJECT && strncmp(name, "_ZZ", 3) == 0 &&
          symbols[k].st_shndx < h->e_shnum && sections[symbols[k].st_shndx].sh_type == SHT_NOBITS)
        found.push_back(
            {name,
             {(unsigned char *)(h->e_type == ET_EXEC ? nullptr : base) + symbols[k].st_value,
              symbols[k].st_size}});
    }
  }
  munmap(map, size);
  return found;
}

struct Function {
  std::vector<Range> variables;
  bool fresh; /* filled for this block */
};
std::unordered_map<const char *, Function> &functions =
    *new std::unordered_map<const char *, Function>;
std::vector<Function *> &dirty = *new std::vector<Function *>;

/* `function` is the name as written; the mangled one has its length before it. */
Function *look_up(const char *function) {
  static auto &modules = *new std::map<void *, Locals>;
  Function *f = &functions[function];
  Dl_info info;
  if (!dladdr(function, &info) || !info.dli_fname)
    return f;
  auto module = modules.find(info.dli_fbase);
  if (module == modules.end()) {
    Locals locals = read_locals(info.dli_fname, (char *)info.dli_fbase);
    if (locals.empty())
      locals = read_locals("/proc/self/exe", (char *)info.dli_fbase);
    module = modules.emplace(info.dli_fbase, std::move(locals)).first;
  }
  std::string key = std::to_string(strlen(function)) + function;
  for (const Local &l : module->second) {
    size_t at = l.name.find(key);
    if (at != std::string::npos && !(l.name[at - 1] >= '0' && l.name[at - 1] <= '9'))
      f->variables.push_back(l.range);
  }
  return f;
}

/* Without AddressSanitizer's checks: there are redzones between the variables. */
__attribute__((no_sanitize_address)) void fill(Range r) {
  size_t i = 0;
  for (; i < r.n && ((uintptr_t)(r.p + i) & 7); i++)
    r.p[i] = MOTH_EMU_PATTERN;
  for (; i + 8 <= r.n; i += 8)
    *(volatile uint64_t *)(r.p + i) = ~(uint64_t)0;
  for (; i < r.n; i++)
    r.p[i] = MOTH_EMU_PATTERN;
}

enum { SHARED_MAX = 256 << 10, PAGE = 4096 };
char *memory; /* SHARED_MAX bytes, then a page that is not mapped */
char *dynamic;
size_t dynamic_size;
bool dynamic_fresh;

} // namespace

bool moth_emu_shared_open(size_t n) {
  if (!memory) {
    void *p = mmap(nullptr, SHARED_MAX + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p, SHARED_MAX, PROT_READ | PROT_WRITE) != 0)
      return false;
    memory = (char *)p;
  }
  dynamic_size = n;
  dynamic = memory + SHARED_MAX - (n + 15) / 16 * 16;
  ASAN_POISON_MEMORY_REGION(memory, SHARED_MAX);
  ASAN_UNPOISON_MEMORY_REGION(dynamic, n);
  return true;
}
void moth_emu_shared_begin(void) {
  dynamic_fresh = false;
  for (Function *f : dirty)
    f->fresh = false;
  dirty.clear();
}

void *moth_emu_shared(void) {
  if (!dynamic_fresh)
    memset(dynamic, MOTH_EMU_PATTERN, dynamic_size);
  dynamic_fresh = true;
  return dynamic;
}
void moth_emu_shared_here(const char *name) {
  auto i = functions.find(name);
  Function *f = i == functions.end() ? look_up(name) : &i->second;
  if (f->fresh)
    return;
  for (Range r : f->variables)
    fill(r);
  f->fresh = true;
  dirty.push_back(f);
}
