# moth's build. `make help` lists the targets; V=1 shows the commands.
#
# The public targets run one after the other and start an inner make for what can run in parallel:
# that one first runs the op generator and then sees its outputs. Everything is built under $(B).

VERSION := $(shell sed -n 's/.*MOTH_VERSION *"\(.*\)"/\1/p' src/moth.h 2>/dev/null)
# What programs are linked to, by the first number of the version, as src/lua/tensor.c says it to Lua.
SONAME  := libmoth.so.$(firstword $(subst ., ,$(VERSION)))
PREFIX  ?= /usr/local
# CROSS=aarch64-linux-gnu: for another processor, into a folder of its own. `make edge` reads it by itself (src/edge/rules.mk).
TRIPLE  := $(if $(filter edge%,$(MAKECMDGOALS)),,$(patsubst %-,%,$(CROSS)))
B       ?= build$(if $(TRIPLE),/$(firstword $(subst -, ,$(TRIPLE))))
# gcc, or clang where there is no gcc.
CC      := $(if $(TRIPLE),$(TRIPLE)-gcc,$(if $(filter default undefined,$(origin CC)),$(notdir $(or $(shell command -v gcc || command -v clang),gcc)),$(CC)))
CLANG   ?= clang
LUAJIT  ?= luajit
BUSTED  ?= /usr/bin/busted
FUZZ_SECONDS ?= 25
MAKEFLAGS += --no-print-directory -r
INNER   := $(filter libs lint-c cuda-lib emu-lib edge-libs $(B)/%,$(MAKECMDGOALS))
SUBMAKE  = +@$(MAKE) $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 2))
Q       := $(if $(V),,@)
say      = $(if $(V),,@printf '  %-4s %s\n' '$(1)' '$(2)')

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
ifeq ($(INNER),)
.NOTPARALLEL:
endif

# ---- what is built ------------------------------------------------------------------------------

FLOORS  := src/core src/device src/dispatch src/autograd src/comm src/composite src/graph src/profile src/io src/edge kernels/common kernels/cpu
GEN     := $(B)/gen
# For another program's LuaJIT, and for LuaJIT itself: moth is this build.
INSIDE   = LUA_PATH="lua/?.lua;lua/?/init.lua;$(GEN)/?.lua;;" LUA_CPATH="$(B)/?.so;;"
HERE     = $(INSIDE) $(LUAJIT)
# edge_run.c is a program of its own, for the edge library.
CORE_C  := $(filter-out src/edge/edge_run.c,$(sort $(wildcard $(FLOORS:%=%/*.c))))
LUA_C   := $(filter-out src/lua/moth_main.c,$(sort $(wildcard src/lua/*.c)))
MAIN_C  := $(sort $(wildcard src/lua/launcher/*.c))
# The generator's files are known once it has run: see $(GEN)/sources.mk below.
KERN_C   = $(KERNEL_SOURCES)
GEN_C    = $(GEN_SOURCES)
object   = $(patsubst %.c,$(B)/obj/%.o,$(patsubst $(B)/%,%,$(1)))
CORE_O   = $(call object,$(CORE_C) $(GEN_C) $(KERN_C))
LUA_O    = $(call object,$(LUA_C))
MAIN_O  := $(call object,$(MAIN_C))

# ---- flags --------------------------------------------------------------------------------------

WARN     := -Wall -Wextra -Wshadow -Wconversion
NO_GCC   := -Wno-source-uses-openmp -Wno-unknown-pragmas # clang: it does not know all that gcc does
# The processor that is built for, and the instruction sets of its kernels: kernels/cpu/level.c chooses one. ISA_generic is
# that of all other code.
CPU      := $(firstword $(subst -, ,$(or $(TRIPLE),$(shell $(CC) -dumpmachine))))
ifeq ($(CPU),x86_64)
ISAS        := generic avx2 avx512
ISA_generic := -march=x86-64-v2
ISA_avx2    := -march=x86-64-v3
# Each processor with AVX-512 knows prefetchw, though x86-64-v4 does not name it.
ISA_avx512  := -march=x86-64-v4 -mprfchw -mprefer-vector-width=512
else ifeq ($(CPU),aarch64)
ISAS        := neon
ISA_generic := -march=armv8-a
ISA_neon    := $(ISA_generic)
else
ISAS        := generic
endif
# Those that are built: LEVELS=own, all code's and this machine's; LEVELS=all, as `make all-levels`, packages and specs
# have them. A folder that has all keeps all.
LEVELS   ?= own
export LEVELS
FLAGS_OF := $(shell sed -n '/^flags/{p;q;}' /proc/cpuinfo 2>/dev/null)
has_all   = $(if $(filter-out $(FLAGS_OF),$(1)),,$(2))
OWN       = generic $(or $(call has_all,avx2 fma bmi2 avx512f avx512bw avx512dq avx512vl avx512cd,avx512),$(call has_all,avx2 fma bmi2,avx2))
BUILT     = $(if $(and $(filter own,$(LEVELS)),$(filter x86_64,$(CPU)),$(if $(wildcard $(B)/.levels),$(filter-out all,$(shell cat $(B)/.levels)),yes)),$(OWN),$(ISAS))
# -g1: variable tracking costs a third of the time to compile. Type-generic code says x != x of integers, too. Nothing
# is thrown through kernels; debuggers unwind them by .debug_frame, which is stripped where nobody needs it.
KERN_FLAGS  := -g1 $(if $(SAN),,-fno-asynchronous-unwind-tables) -Wno-tautological-compare -ffp-contract=fast -fno-math-errno -fno-trapping-math -fwrapv
isa       = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
# No `rep stos` for structures that a call sets up on the stack: it takes some 30 cycles to begin.
ifeq ($(findstring clang,$(CC))$(CPU),x86_64)
NO_REP   := -mmemset-strategy=vector_loop:512:noalign,libcall:-1:noalign \
  -mmemcpy-strategy=vector_loop:512:noalign,libcall:-1:noalign
endif
OPT_CORE := $(if $(SAN),-O1,-O2 $(NO_REP))
# No jump threading: gcc makes several selects of one clamp then, and exp takes 8 % longer. Each function begins a cache line:
# else what is linked before a loop decides on its speed (sums of columns: 15 %).
OPT_KERN := $(if $(SAN),-O1,-O3 -falign-functions=64 $(if $(findstring clang,$(CC)),,-fno-thread-jumps))
# For machines from before 2013: half the time to compile; without vectors, where another level is above, all but float32's:
# a sixth of the code.
OPT_generic := $(if $(SAN),-O1,-O2 -ftree-vectorize $(if $(findstring clang,$(CC)),,-fvect-cost-model=dynamic))
OPT_rare    := $(if $(SAN),$(OPT_generic),$(if $(filter-out generic,$(ISAS)),-Os,$(OPT_generic)))
# Vectors by value between inlined functions: gcc's note about their ABI has no pragma that silences it.
no_note   = $(if $(findstring /typed_,$(1)),-Wno-psabi)
is_common = $(and $(findstring _float32_,$(1)),$(if $(findstring /special_,$(1)),,yes))
opt_kern  = $(if $(findstring _generic,$(1)),$(if $(is_common),$(OPT_generic),$(OPT_rare)),$(OPT_KERN))
# Calls of ops, one after the other: the longest files, and a third smaller so.
OPT_calls = $(if $(SAN),-O1,-Os)
CLANG_CC := $(findstring clang,$(CC))
OPENMP   := $(if $(CLANG_CC),-fopenmp=libgomp,-fopenmp)
# omp.h alone: the folder that it lies in has gcc's own stdatomic.h, which clang must not find.
OMP_H     = -idirafter $(B)/omp$(shell mkdir -p $(B)/omp; ln -sf $(lastword $(wildcard /usr/lib/gcc/*/*/include/omp.h)) $(B)/omp/omp.h)
SAN_FLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer) \
  $(if $(findstring undefined,$(SAN)),-fno-sanitize-recover=undefined) \
  $(if $(findstring float-cast,$(SAN)),-fno-sanitize-recover=float-cast-overflow) \
  $(if $(CLANG_CC),$(NO_GCC) $(OMP_H) $(if $(SAN),-shared-libsan))
# LuaJIT and the libraries of another processor, that specs run with, too: by .ci/sysroot from Debian's packages.
SYSROOT  ?= $(B)/sysroot
ifneq ($(TRIPLE),)
LUAJIT_CFLAGS := -I$(SYSROOT)/usr/include/luajit-2.1
LIBRARIES := -L$(SYSROOT)/usr/lib/$(TRIPLE)
else
LUAJIT_CFLAGS := $(shell pkg-config luajit --cflags 2>/dev/null || echo -I/usr/include/luajit-2.1)
endif
INCLUDES := -Isrc -I$(GEN) -I.
CPPFLAGS_ALL = $(INCLUDES) -D_GNU_SOURCE $(CPPFLAGS)
# Objects say paths from the top of the tree: the same source gives the same bytes in each folder. Coverage looks for the
# folder itself. It is no part of FLAGS_KEY: a tree that was moved is not compiled again.
PLACE    = $(if $(findstring --coverage,$(CFLAGS)),,-ffile-prefix-map='$(CURDIR)'=.)
CFLAGS_ALL = -std=gnu17 -g -fPIC -fvisibility=hidden $(OPENMP) $(WARN) $(WERROR) $(SAN_FLAGS) $(CFLAGS)
# The loader refuses the libraries where the processor lacks what ISA_generic uses, instead of an illegal instruction.
ifeq ($(CPU),x86_64)
NEEDS    := -Wl,-z,x86-64-v2
endif
SHARED   := -shared -Wl,-z,nodelete -Wl,--as-needed -Wl,-Bsymbolic-functions $(NEEDS)
LIBS     := -ldl -lm -lpthread

# The flags an object depends on: changing them rebuilds, changing the rest of this file does not.
FLAGS_KEY = $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(OPT_CORE) $(OPT_KERN) $(OPT_generic) $(OPT_rare) $(OPT_calls) $(KERN_FLAGS) $(LUAJIT_CFLAGS)

# ---- inner make ---------------------------------------------------------------------------------

ifneq ($(INNER),)
# Made before anything else; make then starts again and knows the generated files. The generator
# leaves a file whose content did not change alone, so that only what changed is compiled again. It
# also checks the op table against the kernels, shape rules and formulas that are there.
include $(GEN)/sources.mk
$(shell mkdir -p $(B) && { [ '$(LEVELS)' = own -a -f $(B)/.levels ] || echo '$(LEVELS)' | cmp -s - $(B)/.levels || echo '$(LEVELS)' > $(B)/.levels; })
$(shell mkdir -p $(B) && { echo '$(FLAGS_KEY)' | cmp -s - $(B)/.flags || echo '$(FLAGS_KEY)' > $(B)/.flags; })
endif

$(GEN)/sources.mk: $(if $(INNER),$(B)/.levels) $(wildcard src/ops/*.lua src/dispatch/*.c src/composite/*.c src/comm/collective.c src/autograd/*.h kernels/cpu/*.c kernels/cuda/*.cu kernels/*.h kernels/cpu/lanes.h kernels/cpu/typed/*.h src/codegen/*.lua src/edge/moth_edge.h lua/moth/lang/source.lua lua/moth/lang/homes.lua src/moth*.h src/core/*.h src/device/*.h src/dispatch/*.h kernels/common/*.h)
	$(call say,GEN,$(GEN))
	@mkdir -p $(GEN)
	$(Q)$(LUAJIT) src/ops/gen.lua $(GEN) "$(ISAS)" "$(BUILT)"

$(GEN)/%.c: $(GEN)/sources.mk ;

# Data of process groups over several hosts, by Debian's Gloo, where that is: libmoth.so opens it at run time.
GLOO     := $(if $(TRIPLE),,$(if $(wildcard /usr/include/gloo/rendezvous/context.h),$(shell command -v g++ || command -v clang++)))
libs: $(B)/libmoth.so $(if $(LUA_C),$(B)/moth_lua.so) $(B)/moth $(if $(GLOO),$(B)/libmoth_gloo.so)
	@:

$(B)/libmoth_gloo.so: src/comm/gloo.cc src/comm/transport_shim.h $(B)/.flags
	$(call say,C++,$@)
	$(Q)$(GLOO) -std=c++17 -O2 -g -fPIC -fvisibility=hidden $(WARN) $(if $(SAN),-fsanitize=$(SAN)) -Isrc -shared \
	  -Wl,-z,nodelete -Wl,-z,defs -Wl,-soname,libmoth_gloo.so -o $@ $< -lgloo -lpthread

# The same by the MPI of a site: make mpi MPICC=mpicc.
MPICC    ?= mpicc
.PHONY: mpi
mpi: $(B)/libmoth_mpi.so
$(B)/libmoth_mpi.so: src/comm/mpi/shim.c src/comm/transport_shim.h $(B)/.flags
	$(call say,MPI,$@)
	$(Q)$(MPICC) -std=gnu17 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Wno-stringop-overflow -Isrc -shared -Wl,-z,nodelete \
	  -Wl,-soname,libmoth_mpi.so -o $@ $<

# libmoth.so is a link, for the linker alone.
$(B)/libmoth.so: $(B)/$(SONAME) ;
$(B)/$(SONAME): $(CORE_O)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(SHARED) -Wl,-z,defs -Wl,-soname,$(SONAME) -o $@ $^ $(LDFLAGS) $(LIBS)
	$(Q)ln -sfn $(SONAME) $(B)/libmoth.so

# The dots are padding: the loader compares 16 bytes behind $ORIGIN at a time, and valgrind sees it
# read over the end of a shorter path.
$(B)/moth_lua.so: $(LUA_O) $(B)/libmoth.so
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(SHARED) -Wl,-rpath,'$$ORIGIN/././././.:$$ORIGIN/../.././././.' -o $@ $(LUA_O) \
	  $(B)/libmoth.so $(LDFLAGS) $(LIBS)

$(B)/moth: $(MAIN_O)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -rdynamic -o $@ $^ $(LIBRARIES) $(LDFLAGS) -lluajit-5.1 $(LIBS)
	$(Q)ln -sf moth $(B)/mothrun
	$(Q)ln -sfn '$(CURDIR)/lua' $(B)/lua

# compile(where the object is, source pattern, flags): the first rule that fits is taken.
define compile
$(B)/obj/$(1)%.o: $(2)%.c $(B)/.flags
	$$(call say,CC,$$<)
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CPPFLAGS_ALL) $$(CFLAGS_ALL) $$(PLACE) $(3) -MMD -MP -c -o $$@ $$<

endef
$(eval $(call compile,gen/kernels/,$(GEN)/kernels/,$$(call opt_kern,$$<) $(KERN_FLAGS) $$(call no_note,$$<) $$(call isa,$$<)))
$(eval $(call compile,gen/,$(GEN)/,$$(if $$(filter %/composite.c %/backward.c,$$<),$(OPT_calls),$(OPT_CORE)) $(ISA_generic)))
$(eval $(call compile,src/lua/launcher/,src/lua/launcher/,$(OPT_CORE) $(LUAJIT_CFLAGS)))
$(eval $(call compile,src/lua/,src/lua/,$(OPT_CORE) -fno-plt $(ISA_generic) $(LUAJIT_CFLAGS)))
$(eval $(call compile,,,$(OPT_CORE) $(ISA_generic)))

include src/cuda/rules.mk
include src/edge/rules.mk
cuda-lib: $(B)/libmoth_cuda.so
	@:
emu-lib: $(B)/libmoth_cudaemu.so
	@:

# Warnings are errors for both compilers here, and only here: a user's newer compiler may know more.
# One instruction set of the kernels will do: the others are the same text.
LINT_C    = $(CORE_C) $(LUA_C) $(MAIN_C) $(GEN_C) $(filter %_$(or $(filter avx2,$(BUILT)),$(lastword $(BUILT))).c,$(KERN_C))
LINT_OK   = $(patsubst $(B)/%,%,$(LINT_C))
LINTERS ?= gcc clang
lint-c: $(foreach by,$(LINTERS),$(LINT_OK:%=$(B)/lint/$(by)/%.o))
	@:
LINT_FLAGS = $(CPPFLAGS_ALL) $(LUAJIT_CFLAGS) -std=gnu17 -fPIC \
  $(WARN) -Werror $(if $(findstring /kernels/,$<),$(KERN_FLAGS) $(call isa,$<),$(ISA_generic))
LINT_gcc   = gcc $(LINT_FLAGS) -fopenmp -O1 -c -o $@
LINT_clang = $(CLANG) $(LINT_FLAGS) -fopenmp=libgomp $(NO_GCC) $(OMP_H) -fsyntax-only
define lint_rules
$(B)/lint/$(1)/gen/%.c.o: $(GEN)/%.c
	$$(call say,LINT,$(1) $$<)
	@mkdir -p $$(@D)
	$$(Q)$$(LINT_$(1)) -MMD -MP -MT $$@ -MF $$@.d $$< && touch $$@
$(B)/lint/$(1)/%.c.o: %.c
	$$(call say,LINT,$(1) $$<)
	@mkdir -p $$(@D)
	$$(Q)$$(LINT_$(1)) -MMD -MP -MT $$@ -MF $$@.d $$< && touch $$@
endef
$(eval $(call lint_rules,gcc))
$(eval $(call lint_rules,clang))

ifneq ($(INNER),)
-include $(patsubst %.o,%.d,$(CORE_O) $(LUA_O) $(MAIN_O))
-include $(LINT_OK:%=$(B)/lint/gcc/%.o.d) $(LINT_OK:%=$(B)/lint/clang/%.o.d)
endif

# ---- building and using -------------------------------------------------------------------------

.PHONY: edge edge-libs edge-test deps-edge everywhere
.PHONY: all all-levels libs lint-c cuda cuda-release cudaemu cuda-lib emu-lib check deps deps-test deps-dev deps-cover deps-hosts deps-site demo test test-full test-arm64 asan ubsan-clang tsan valgrind faults soak coverage lint bench bench-ops bundle gpu-check parity bridges fuzz site docs pictures tour install install-lua install-share dist deb uninstall clean help

all: check $(if $(TRIPLE),$(SYSROOT)/usr)
	$(SUBMAKE) B=$(B) SAN=$(SAN) libs
# Specs compare levels, packages go to other machines.
all-levels test test-full deb bundle coverage fuzz asan ubsan-clang: LEVELS := $(if $(filter file,$(origin LEVELS)),all,$(LEVELS))
all-levels: all

$(B)/sysroot/usr:
	@sh .ci/sysroot $(TRIPLE) $(@D)

# The CUDA backend, for sm_90a alone; all that nvcc knows in cuda-release. cudaemu: its emulation.
cuda: all
	$(SUBMAKE) B=$(B) cuda-lib
cuda-release: all
	$(SUBMAKE) B=$(B) CUDA_ARCH="75 80 86 89 90a 100 120" CUDA_PTX=80 cuda-lib
cudaemu: all
	$(SUBMAKE) B=$(B) SAN=$(SAN) emu-lib

# The runtime of exported programs for C, and its tool: src/edge/rules.mk.
edge:
	$(SUBMAKE) B=$(B) SAN=$(SAN) CROSS= $(GEN)/sources.mk
	$(SUBMAKE) B=$(B) SAN=$(SAN) CROSS=$(CROSS) OPS_OF="$(OPS_OF)" edge-libs

# For spec/edge: libraries with the ops of two small models, for this machine and, where its compiler is, for arm64.
ARM64    := aarch64-linux-gnu-
EDGE_MODELS = $(B)/edge-spec/cnn.mte $(B)/edge-spec/text.mte $(B)/edge-spec/steps.mte
edge-test: all
	@$(HERE) spec/edge/models.lua $(B)/edge-spec
	$(SUBMAKE) B=$(B) SAN=$(SAN) EDGE=$(B)/edge-spec OPS_OF="$(EDGE_MODELS)" edge-libs
	$(if $(shell command -v $(ARM64)gcc),$(SUBMAKE) B=$(B) EDGE=$(B)/edge-spec-arm64 CROSS=$(ARM64) OPS_OF="$(EDGE_MODELS)" edge-libs)

# Every model of moth.models in every way in which it ships: MODELS="vgg16 GPT" for some.
everywhere: all
	$(SUBMAKE) B=$(B) SAN=$(SAN) EDGE=$(B)/edge-all OPS_OF= edge-libs
	@$(HERE) spec/parity/everywhere.lua $(B)/everywhere $(B)/edge-all/edge-run $(MODELS)

find     = $(if $(2),✓ $(1) $(2),✗ $(1): $(3))
version  = $(if $(shell command -v $(1)),$(or $(shell $(1) $(2) 2>&1 | grep -o '[0-9]\+\.[0-9][-0-9.a-z]*' | head -n 1),found))
LUAJIT_H  = $(wildcard $(patsubst -I%,%/lua.h,$(filter -I%,$(LUAJIT_CFLAGS))) /usr/include/luajit-2.1/lua.h)
OPENBLAS  = $(firstword $(wildcard /usr/lib/*/openblas-openmp/libopenblas.so.0 /usr/lib*/libopenblaso.so.0))
ONEDNN    = $(firstword $(wildcard /usr/lib/*/libdnnl.so.2 /usr/lib*/libdnnl.so.2))
NVCC      = $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
check:
	$(info $(call find,$(CC),$(call version,$(CC),--version),needed; HINT: make deps))
	$(info $(call find,luajit,$(call version,$(LUAJIT),-v),needed; HINT: make deps))
	$(if $(TRIPLE),,$(info $(call find,luajit headers,$(firstword $(LUAJIT_H)),needed; HINT: make deps)))
	$(info $(call find,OpenBLAS openmp,$(OPENBLAS),matrix products fall back to slow own code; HINT: make deps))
	$(info $(call find,oneDNN,$(ONEDNN),large float32 products take longer; HINT: make deps))
	$(info $(call find,nvcc,$(NVCC),built without CUDA))
	$(info $(call find,Gloo,$(if $(GLOO),headers),process groups use own sockets alone; HINT: make deps))
	$(info $(call find,busted,$(wildcard $(BUSTED)),no `make test`; HINT: make deps))
	$(info $(call find,clang,$(call version,$(CLANG),--version),no lint and no fuzzing; HINT: make deps-dev))
	$(info $(call find,clang-format,$(call version,clang-format,--version),no lint; HINT: make deps-dev))
	$(info $(call find,luacheck,$(call version,luacheck,--version),no lint; HINT: make deps-dev))
	@test -n '$(shell command -v $(CC))' -a -n '$(shell command -v $(LUAJIT))' -a -n '$(LUAJIT_H)'

deps deps-test deps-site deps-dev deps-cover deps-hosts deps-edge:
	@sh .ci/deps build $(if $(filter-out deps,$@),test) $(filter dev cover hosts edge,$(@:deps-%=%)) \
	  $(if $(or $(TRIPLE),$(filter %-dev,$@)),edge)

demo: deps all
	$(B)/moth examples/fashion_mnist.lua

# The runner sets the module paths for a build folder, starts busted, ends with one line of totals.
# SPECS is handed to busted: SPECS=spec/io, SPECS=--tags=quick.
# Without it, all specs run, and those of ops a second time on the emulation of CUDA (`make test`: a fifth of their
# cases, chosen by the seed; `make test-full`: all).
RUN      = $(LUAJIT) spec/runner.lua
# A process for each file, so that no spec collects another's garbage; under a tool that makes the start slow, for each
# folder. The runner's processes take them in this order: what takes longest comes first.
LONG_SPECS = $(wildcard spec/lua/surface_spec.lua spec/codegen/build_spec.lua spec/kernels/math_spec.lua spec/compile/*_spec.lua spec/kernel/*_spec.lua)
SPECS_CPU = $(if $(CHOSEN),$(filter-out spec/ops spec/cuda spec/fuzz spec/parity,$(patsubst %/,%,$(wildcard spec/*/))),$(LONG_SPECS) \
  $(filter-out $(LONG_SPECS) spec/ops/% spec/cuda/%,$(wildcard spec/*/*_spec.lua))) $(wildcard spec/*_spec.lua)
# runs(arguments for each, more environment for the ops on the emulation)
# A filter alone (SPECS=--tags=quick) is one of all specs of the CPU.
CHOSEN   = $(filter --%,$(SPECS))
OPS_EMU  = $(filter-out spec/ops/schema_spec.lua spec/ops/records_spec.lua,$(wildcard spec/ops/*_spec.lua))
runs     = $(if $(SPECS),$(1) $(SPECS) $(if $(filter-out --%,$(SPECS)),,spec/ops $(SPECS_CPU)),$(1) spec/ops \
  --with MOTH_CUDA=emu MOTH_CUDA_SYNC=1 MOTH_DEVICE=cuda $(2) -- $(1) $(OPS_EMU) \
  --with MOTH_CUDA=emu -- $(1) spec/cuda --with -- $(1) $(SPECS_CPU))
# What the specs of spec/edge run takes a minute to compile, and no other spec needs it.
test: deps-test cudaemu $(if $(filter-out --%,$(SPECS)),$(if $(filter spec spec/ spec/edge%,$(SPECS)),edge-test),edge-test)
	@$(RUN) --build=$(B) -- $(call runs,--exclude-tags=slow,MOTH_FRACTION=0.2)
test-full: deps-test cudaemu edge-test
	+@$(MAKE) asan
	@MOTH_CASES=$${MOTH_CASES:-1000} $(RUN) --build=$(B) -- $(call runs,)

# On the build for arm64, by qemu-user, some five minutes: ARM64_SPECS, those of int8 without the processor's dot product,
# too, or SPECS. What starts further programs of moth by itself, measures, or compiles C code by gcc is left out.
in_folder = $(patsubst %,spec/$(1)/%_spec.lua,$(2))
ARM64_SPECS = $(call in_folder,core,tensor tensor_values autograd autograd_engine autograd_views hooks) \
  $(call in_folder,nn,module norm loss rnn) $(call in_folder,optim,optimizers) $(call in_folder,io,io tree ties) \
  $(call in_folder,kernels,int8 half_product integers matvec pool product rearrange rows slices small_product stretch topk) \
  $(call in_folder,ops,conversion layout_bits) $(call in_folder,compile,graph update) $(call in_folder,quantization,layers) \
  $(call in_folder,lua,einsum func linalg numbers repl)
test-arm64:
	+@$(MAKE) CROSS=aarch64-linux-gnu B=build/aarch64
	@sh .ci/emulated build/aarch64
	@MOTH_CC=aarch64-linux-gnu-gcc LUAJIT='$(CURDIR)/build/aarch64/emulated/luajit' MOTH_FRACTION=$${MOTH_FRACTION:-0.02} \
	  $(RUN) --build=build/aarch64/emulated -- --exclude-tags=slow $(or $(SPECS),$(ARM64_SPECS) \
	  --with MOTH_QEMU="-cpu cortex-a53" -- spec/kernels/int8_spec.lua)

# The last one is not part of "undefined": what a float becomes that no integer holds is defined, never left to C.
ASAN    := address,undefined,float-cast-overflow
NOASAN   = $(call runs,--exclude-tags=noasan$(comma)slow)
comma    := ,
# sanitized(target, compiler, sanitizers, its library, arguments of busted)
define sanitized
$(1): deps $(if $(findstring clang,$(2)),deps-dev)
	$$(SUBMAKE) CC=$(2) B=$(B)/$(1) SAN=$(3) libs $(if $(or $(SPECS),$(filter-out gcc,$(2)),$(filter thread,$(3))),,emu-lib)
	@$(6) $(RUN) --build=$(B)/$(1) --preload=$$(shell $(2) -print-file-name=$(4)) -- $(5)
endef
$(eval $(call sanitized,asan,gcc,$(ASAN),libasan.so,$(NOASAN)))
$(eval $(call sanitized,ubsan-clang,$(CLANG),$(ASAN),libclang_rt.asan-$(CPU).so,$(NOASAN)))
$(eval $(call sanitized,tsan,gcc,thread,libtsan.so,$(or $(SPECS),--tags=threads),OMP_NUM_THREADS=1))
valgrind: deps-dev all
	@MOTH_CPU=generic $(RUN) --build=$(B) --wrap="valgrind -q --error-exitcode=9 --leak-check=full \
	  --show-leak-kinds=definite --errors-for-leak-kinds=definite" -- $(or $(SPECS),--tags=quick)

# Lines and branches of src/ and kernels/ that the specs reach, the emulation of CUDA among them.
COVERED  := --quiet --rc lcov_branch_coverage=1
coverage: deps-cover
	$(SUBMAKE) B=$(B)/coverage CFLAGS="--coverage -fprofile-update=atomic" OPT_CORE=-O1 OPT_KERN=-O1 OPT_generic=-O1 libs emu-lib
	@find $(B)/coverage -name '*.gcda' -delete
	@$(RUN) --build=$(B)/coverage -- $(call runs,--exclude-tags=noasan$(comma)slow,MOTH_FRACTION=0.3)
	@lcov $(COVERED) --capture -d $(B)/coverage/obj -b . --no-external -o $(B)/coverage/all.info \
	  2>$(B)/coverage/lcov.log || { cat $(B)/coverage/lcov.log; exit 1; } # it warns of itself
	@lcov $(COVERED) --extract $(B)/coverage/all.info '$(CURDIR)/src/*' '$(CURDIR)/kernels/*' -o $(B)/coverage/moth.info
	@lcov $(COVERED) --list $(B)/coverage/moth.info

# What fails is the disk, the system, the process: needs strace.
faults: deps-dev all
	@MOTH_CASES=$${MOTH_CASES:-1000} MOTH_VERBOSE=1 $(RUN) --build=$(B) -- $(or $(SPECS),--tags=faults)

# A million steps of a training: memory, descriptors and threads stay.
soak: deps-test all
	@MOTH_TEST_TIMEOUT=3000 $(RUN) --build=$(B) -- spec/soak.lua

C_FILES   = $(shell find src kernels spec examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc')
lint: deps-dev
	luacheck -q --no-color $(wildcard lua spec examples src/ops)
	@out=$$(clang-format --dry-run -Werror $(C_FILES) 2>&1) || { \
	  echo "✗ HINT: clang-format -i" $$(printf '%s' "$$out" | sed -n 's/:[0-9]*:[0-9]*: error:.*//p' | sort -u); exit 1; }
	$(SUBMAKE) lint-c

bench-ops: all # every op beside PyTorch's: MOTH_OP=name restricts it, ARGS="--threads=2 --out=file"
	$(HERE) bench/ops.lua $(ARGS)
bench: all
	$(HERE) bench/run.lua
	$(HERE) bench/training.lua
	$(HERE) bench/distributed.lua

# A relocatable folder with LuaJIT and busted; BUNDLE=openmp: with OpenBLAS. And all that needs a GPU.
bundle:
	@sh bench/gpu/bundle.sh $(B)/bundle $(or $(BUNDLE),none)
gpu-check:
	@B=$(B) sh bench/gpu/check.sh

# The lab, ops, kernels, modules, files and random programs against PyTorch, where python3 has it: a tool of ours, not part
# of the test. MOTH_SEED and MOTH_CASES choose the programs; OPS="cross kron": these names of PyTorch's op database alone.
parity: all
	@for d in float64:1e-6 float32:1e-3; do \
	  $(HERE) spec/parity/lab.lua $${d%:*} $(B)/parity_$${d%:*}.safetensors && \
	  python3 spec/parity/lab.py $(B)/parity_$${d%:*}.safetensors $${d#*:} || exit 1; done
	@for d in float64:1e-10 float32:1e-3; do \
	  $(HERE) spec/parity/conv.lua $${d%:*} $(B)/parity_conv.safetensors && \
	  python3 spec/parity/conv.py $(B)/parity_conv.safetensors $${d#*:} || exit 1; done
	@for d in float64:1e-6 float32:1e-3; do \
	  $(HERE) spec/parity/gpt.lua $${d%:*} $(B)/parity_gpt.safetensors && \
	  python3 spec/parity/gpt.py $(B)/parity_gpt.safetensors $${d#*:} || exit 1; done
	@d=$(B)/parity_files; rm -rf $$d; mkdir -p $$d; python3 spec/parity/files.py make $$d && f=$$(cd $$d && ls) && \
	  $(HERE) spec/parity/files.lua $$d $$f && \
	  python3 spec/parity/files.py check $$d $$f
	@d=$(B)/parity_checkpoints; rm -rf $$d; mkdir -p $$d; $(HERE) spec/parity/checkpoints.lua $$d && \
	  python3 spec/parity/checkpoints.py $$d
	@python3 spec/parity/data.py $(B)/parity_data && $(HERE) spec/parity/data.lua $(B)/parity_data
	@$(HERE) spec/parity/signatures.lua | python3 spec/parity/signatures.py
	@python3 spec/parity/modules.py $(B)/parity_modules.json && \
	  $(HERE) spec/parity/modules.lua $(B)/parity_modules.json
	@if python3 -c "import onnxruntime" 2>/dev/null; then d=$(B)/parity_onnx && for o in 17 18 20 23; do \
	  $(HERE) spec/parity/onnx_files.lua $$d $$o && python3 spec/parity/onnx_files.py $$d $$o || exit 1; done && \
	  python3 spec/parity/onnx_cases.py $(B)/parity_cases && $(HERE) spec/parity/onnx_cases.lua $(B)/parity_cases && \
	  python3 spec/parity/onnx_torch.py $(B)/parity_torch >/dev/null 2>&1 && \
	  $(HERE) spec/parity/onnx_cases.lua $(B)/parity_torch && rm -rf $(B)/parity_models && \
	  python3 spec/parity/onnx_models.py $(B)/parity_models && \
	  $(HERE) spec/parity/onnx_cases.lua $(B)/parity_models && rm -rf $(B)/parity_models && \
	  LUA_PATH="lua/?.lua;lua/?/init.lua;$(GEN)/?.lua;spec/?.lua;;" LUA_CPATH="$(B)/?.so;;" $(LUAJIT) \
	  spec/parity/onnx_ops.lua $(B)/parity_onnx_ops && python3 spec/parity/onnx_ops.py $(B)/parity_onnx_ops; \
	  else echo "onnx: not compared, onnxruntime is not there"; fi
	@python3 spec/parity/schedules.py $(B)/parity_schedules.json && \
	  $(HERE) spec/parity/schedules.lua $(B)/parity_schedules.json
	@python3 spec/parity/nn.py $(B)/parity_nn.json && $(HERE) spec/parity/nn.lua $(B)/parity_nn.json
	@python3 spec/parity/sampling.py $(B)/parity_sampling.json && $(HERE) spec/parity/sampling.lua $(B)/parity_sampling.json
	@python3 -W ignore spec/parity/distributions.py $(B)/parity_distributions.json && \
	  $(HERE) spec/parity/distributions.lua $(B)/parity_distributions.json
	@d=$(B)/parity_optim; rm -rf $$d; mkdir -p $$d; python3 spec/parity/optim.py make $$d && \
	  $(HERE) spec/parity/optim.lua $$d && python3 spec/parity/optim.py check $$d
	@d=$(B)/parity_models; rm -rf $$d; mkdir -p $$d; if python3 spec/parity/models.py $$d; then \
	  $(HERE) spec/parity/models.lua $$d; else [ $$? = 3 ]; fi
	@d=$(B)/parity_vision; rm -rf $$d; mkdir -p $$d; if python3 -c "import torchvision" 2>/dev/null; then \
	  python3 spec/parity/vision.py $$d && $(HERE) spec/parity/vision.lua $$d; else echo "skip vision: python3 has no torchvision"; fi
	@if python3 -c "import torchaudio" 2>/dev/null; then python3 spec/parity/audio.py $(B)/parity_audio.json && \
	  $(HERE) spec/parity/audio.lua $(B)/parity_audio.json; else echo "skip audio: python3 has no torchaudio"; fi
	@d=$(B)/parity_families; rm -rf $$d; mkdir -p $$d; if python3 spec/parity/families.py $$d; then \
	  $(HERE) spec/parity/families.lua $$d; else [ $$? = 3 ]; fi
	@rm -rf $(B)/parity_ops && python3 spec/parity/ops.py $(B)/parity_ops $(OPS) && \
	  $(HERE) spec/parity/ops.lua $(B)/parity_ops && python3 spec/parity/ops_check.py $(B)/parity_ops
	@$(HERE) spec/parity/leads.lua $(B)/parity_leads.json && python3 spec/parity/leads.py $(B)/parity_leads.json
	@rm -rf $(B)/parity_events
	@$(HERE) spec/parity/events.lua $(B)/parity_events
	@python3 spec/parity/events.py $(B)/parity_events
	@if python3 -c "import torchmetrics" 2>/dev/null; then python3 spec/parity/metrics.py $(B)/parity_metrics.json && \
	  $(HERE) spec/parity/metrics.lua $(B)/parity_metrics.json; else echo "skip metrics: python3 has no torchmetrics"; fi
	@d=$(B)/parity_lora; rm -rf $$d; mkdir -p $$d; if python3 -c "import peft" 2>/dev/null; then \
	  python3 spec/parity/lora.py make $$d && $(HERE) spec/parity/lora.lua $$d && python3 spec/parity/lora.py check $$d; \
	  else echo "skip lora: python3 has no peft"; fi
	@python3 spec/parity/programs.py $(B)/parity_programs.jsonl $${MOTH_SEED:-0} $${MOTH_CASES:-2000} && \
	  $(HERE) spec/parity/programs.lua $(B)/parity_programs.jsonl

# With the programs of others, in an environment of their own: docs/bridges.md. BRIDGE="numpy gguf" for some.
bridges: all
	@python3 spec/parity/bridges/run.py $(B) $(BRIDGE)

# The parsers by libFuzzer, those in Lua by spec/fuzz/parsers.lua; random calls, programs of hooks and damaged files
# through Lua (spec/fuzz/api.lua), on the CPU and on the emulation. MOTH_SEED repeats all but the first. The last line says
# how many inputs each parser had.
FUZZERS  := $(patsubst spec/fuzz/%.c,%,$(wildcard spec/fuzz/fuzz_*.c))
PARSERS   = graph onnx http gguf tokenizer template checkpoint
FUZZ_LUA  = MOTH_SEED=$${MOTH_SEED:-$$(date +%s)} $(LUAJIT) spec/fuzz/run.lua --build=$(B)/asan \
  --preload=$$(gcc -print-file-name=libasan.so) $(if $(FUZZ_RUNS),MOTH_CASES=$(FUZZ_RUNS),MOTH_SECONDS=$(FUZZ_SECONDS))
# said(name, command): runs it, and keeps what it says
said      = { { $(2); } >$(B)/fuzz/$(1).said; failed=$$?; cat $(B)/fuzz/$(1).said; [ $$failed = 0 ]; }
fuzz: deps-dev edge-test
	$(SUBMAKE) $(GEN)/sources.mk
	$(SUBMAKE) CC=gcc B=$(B)/asan SAN=$(ASAN) libs emu-lib
	@mkdir -p $(B)/fuzz && rm -f $(B)/fuzz/*.said
	@$(FUZZ_LUA) -- calls surface && $(FUZZ_LUA) -- hooks && $(FUZZ_LUA) -- files
	@$(FUZZ_LUA) MOTH_CUDA=emu MOTH_DEVICE=cuda -- calls surface hooks
	@for f in $(PARSERS); do $(call said,$$f,$(FUZZ_LUA) -- parsers $$f) || exit 1; done
	@$(call said,sockets,$(subst LUA_PATH=",LUA_PATH="spec/?.lua;,$(INSIDE)) MOTH_SEED=$${MOTH_SEED:-$$(date +%s)} MOTH_CASES=$$(($(or $(FUZZ_RUNS),500000) / 100)) $(B)/moth \
	  spec/fuzz/sockets.lua)
	@for f in $(FUZZERS); do $(call said,$$f,sh spec/fuzz/run.sh $(B)/fuzz $$f $(FUZZ_SECONDS) $(FUZZ_RUNS)) || exit 1; done
	@sh spec/fuzz/c_api.sh $(B)/asan $(B)/fuzz/c_api $(or $(FUZZ_RUNS),1000000) $$(date +%s)
	$(SUBMAKE) B=$(B) SAN=address$(comma)undefined EDGE=$(B)/edge-asan OPS_OF="$(EDGE_MODELS)" edge-libs
	@gcc -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined $(WARN) -Isrc/edge -o $(B)/edge-asan/fuzz \
	  spec/fuzz/edge_files.c $(B)/edge-asan/libmoth_edge.a -lm && $(call said,edge,ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	  $(B)/edge-asan/fuzz $(or $(FUZZ_RUNS),100000) $$(date +%s) $(EDGE_MODELS))
	@MOTH_CASES=$$(($(or $(FUZZ_RUNS),1000000) / 1000)) MOTH_SEED=$$(date +%s) MOTH_TEST_TIMEOUT=7200 $(RUN) --build=$(B)/asan \
	  --preload=$$(gcc -print-file-name=libasan.so) -- spec/lua/binding_spec.lua
	@sed -n 's/^[^a-z]*\([a-z_]*\): *\([0-9]*\) .*/\1 \2/p' $(B)/fuzz/*.said | paste -sd, | sed 's/,/, /g; s/^/inputs: /'

# The guides, the reference with a page for each op, class and module, a search; links are checked. Open
# $(B)/site/index.html, or serve the folder.
site docs: deps-site all
	$(call say,SITE,$(B)/site/index.html)
	$(Q)MOTH_LUAJIT_WARNING=0 $(B)/moth -e 'print(("%d files, %d links"):format(require("moth.reference.pages").site("$(B)/site", ".")))'

# The pictures of the guides, drawn anew by the examples.
pictures: all
	$(B)/moth examples/spirals.lua docs/spirals.png
	$(B)/moth examples/vae.lua --samples docs/example_vae.png
	$(B)/moth examples/unet_segmentation.lua --picture docs/example_unet.png
	$(B)/moth examples/lstm_lm.lua --curve docs/example_lstm.svg
	$(B)/moth examples/finetune.lua --picture docs/example_finetune.png
	@! command -v love >/dev/null || $(INSIDE) love examples/hosts/love --steps 1500 --picture docs/host_love.png

# The lines that the source tour links to.
tour:
	@$(LUAJIT) spec/tour.lua

# ---- installing ---------------------------------------------------------------------------------

# Each folder may be set by itself, as the rock does; DESTDIR goes before them all. moth_lua.so looks for
# libmoth.so.0 beside itself and two floors up, libmoth.so for libmoth_cuda.so beside itself.
BINDIR   := $(PREFIX)/bin
LIBDIR   := $(PREFIX)/lib
INCDIR   := $(PREFIX)/include/moth
PKGDIR   := $(LIBDIR)/pkgconfig
LUADIR   := $(PREFIX)/share/lua/5.1
CLUADIR  := $(LIBDIR)/lua/5.1
DATADIR  := $(PREFIX)/share
ZSHDIR   := $(DATADIR)/zsh/site-functions
INSTALL   = $(Q)install -D -m
# The tree's own libraries keep what debuggers and profilers read; installed, it would be two fifths of their size.
STRIP     = -s --strip-program=strip
# A program that links by pkg-config finds libmoth.so when it runs, too; the system's folders are looked through anyway,
# and packages must not name them.
RPATH     = $(if $(filter /usr/lib /usr/lib/% /usr/lib64 /lib /lib/% /lib64,$(LIBDIR)),,-Wl,-rpath,$${libdir})
# A folder under PREFIX as moth.pc says it: from its own place, so that the whole may be moved.
under     = $(subst ^,,$(subst ^$(PREFIX)/,$${prefix}/,^$(1)))

HEADERS   = src/moth.h src/moth_dtypes.h $(GEN)/moth_ops.h

# All that Lua needs, with what its extensions are compiled against; install adds what C programs need.
install-lua: all
	$(call say,PUT,$(DESTDIR)$(LUADIR)/moth $(DESTDIR)$(LIBDIR)/$(SONAME) $(DESTDIR)$(BINDIR)/moth)
	$(INSTALL) 755 $(STRIP) -t '$(DESTDIR)$(LIBDIR)' $(B)/$(SONAME) $(wildcard $(B)/libmoth_cuda.so $(B)/libmoth_gloo.so $(B)/libmoth_mpi.so)
	$(INSTALL) 755 $(STRIP) -t '$(DESTDIR)$(CLUADIR)' $(B)/moth_lua.so
	$(INSTALL) 755 $(STRIP) -t '$(DESTDIR)$(BINDIR)' $(B)/moth
	$(Q)ln -sf moth '$(DESTDIR)$(BINDIR)/mothrun'
	$(Q)rm -rf '$(DESTDIR)$(LUADIR)/moth' # a file of an older version would be found before a folder of its name
	$(Q)mkdir -p '$(DESTDIR)$(LUADIR)' && to=$$(cd '$(DESTDIR)$(LUADIR)' && pwd) && for dir in lua $(GEN); do \
	  (cd $$dir && find moth '(' -name '*.lua' -o -name 'digits.*' ')' -exec install -D -m 644 {} "$$to"/{} \;) || exit 1; done
	$(INSTALL) 644 lua/moth/library/extension.mk '$(DESTDIR)$(LUADIR)/moth/library/extension.mk'
	$(INSTALL) 644 -t '$(DESTDIR)$(LUADIR)/moth/include' $(HEADERS)
# Man pages, completion for shells, definitions for editors are written by the program, which must run here.
install-share: all
	$(call say,PUT,$(DESTDIR)$(DATADIR)/man $(DESTDIR)$(DATADIR)/moth/meta)
	$(Q)[ -e $(B)/share/made ] && [ -z "$$(find lua $(GEN) $(B)/moth $(B)/moth_lua.so -newer $(B)/share/made | head -n 1)" ] || { rm -rf $(B)/share && \
	  MOTH_LUAJIT_WARNING=0 $(B)/moth -e 'require("moth.cli.commands").install("$(B)/share")' && touch $(B)/share/made; }
	$(Q)rm -rf '$(DESTDIR)$(DATADIR)/moth/meta'
	$(INSTALL) 644 -t '$(DESTDIR)$(DATADIR)/man/man1' $(B)/share/man/man1/*.1
	$(INSTALL) 644 -t '$(DESTDIR)$(DATADIR)/bash-completion/completions' $(B)/share/bash-completion/completions/moth*
	$(INSTALL) 644 -t '$(DESTDIR)$(ZSHDIR)' $(B)/share/zsh/site-functions/_moth*
	$(Q)mkdir -p '$(DESTDIR)$(DATADIR)' && to=$$(cd '$(DESTDIR)$(DATADIR)' && pwd) && cd $(B)/share && \
	  find moth -name '*.lua' -exec install -D -m 644 {} "$$to"/{} \;
install: install-lua $(if $(TRIPLE),,install-share)
	$(call say,PUT,$(DESTDIR)$(INCDIR) $(DESTDIR)$(PKGDIR)/moth.pc)
	$(INSTALL) 644 -t '$(DESTDIR)$(INCDIR)' $(HEADERS)
	$(Q)ln -sfn $(SONAME) '$(DESTDIR)$(LIBDIR)/libmoth.so'
	$(Q)install -d '$(DESTDIR)$(PKGDIR)'
	$(Q)up=$$(realpath -m --relative-to='$(PKGDIR)' '$(PREFIX)') && \
	  printf '%s\n' "prefix=\$${pcfiledir}/$$up" 'libdir=$(call under,$(LIBDIR))' 'includedir=$(call under,$(INCDIR))' '' 'Name: moth' \
	  'Description: deep learning under LuaJIT, the C core' 'Version: $(VERSION)' \
	  'Libs: $(strip -L$${libdir} -lmoth $(RPATH))' 'Cflags: -I$${includedir}' > '$(DESTDIR)$(PKGDIR)/moth.pc'
INSTALLED = $(SONAME) libmoth.so libmoth_cuda.so libmoth_gloo.so libmoth_mpi.so
uninstall:
	rm -rf '$(DESTDIR)$(LUADIR)/moth' '$(DESTDIR)$(INCDIR)' '$(DESTDIR)$(DATADIR)/moth'
	cd '$(DESTDIR)$(DATADIR)' 2>/dev/null && rm -f man/man1/moth.1 man/man1/mothrun.1 man/man1/moth-*.1 bash-completion/completions/moth bash-completion/completions/mothrun || true
	rm -f '$(DESTDIR)$(ZSHDIR)/_moth' '$(DESTDIR)$(ZSHDIR)/_mothrun'
	rm -f $(INSTALLED:%='$(DESTDIR)$(LIBDIR)/%') '$(DESTDIR)$(CLUADIR)/moth_lua.so' '$(DESTDIR)$(BINDIR)/moth' \
	  '$(DESTDIR)$(BINDIR)/mothrun' '$(DESTDIR)$(PKGDIR)/moth.pc'

# The source archive of the last commit: the same commit gives the same bytes (names in order, the commit's time, no owner).
# A rock of this version is added. The name says the commit where it has no tag of the version.
AT        = git -c tar.umask=0022 archive --format=tar
TAGGED    = $(shell git tag --points-at HEAD 2>/dev/null | grep -qx 'v$(VERSION)' || git log -1 --format=+g%h --abbrev=8)
DIST      = moth-$(VERSION)$(TAGGED)
dist:
	@git rev-parse -q --verify HEAD^0 >/dev/null 2>&1 || { echo "✗ make dist needs a git checkout with a commit" >&2; exit 1; }
	@[ -z "$$(git status --porcelain --untracked-files=no)" ] || echo "HINT: what is not committed is not in the archive" >&2
	@mkdir -p $(B)/dist
	$(Q)git show HEAD:rocks/moth-scm-1.rockspec | sed 's/^version = "scm-1"/version = "$(VERSION)-1"/; s/moth-scm-1/moth-$(VERSION)-1/' \
	  >$(B)/dist/moth-$(VERSION)-1.rockspec && chmod 644 $(B)/dist/moth-$(VERSION)-1.rockspec
	$(Q)$(AT) --prefix=$(DIST)/rocks/ --add-file=$(B)/dist/moth-$(VERSION)-1.rockspec --prefix=$(DIST)/ HEAD \
	  >$(B)/dist/$(DIST).tar && gzip -n -9 -f $(B)/dist/$(DIST).tar
	$(call say,TAR,$(B)/dist/$(DIST).tar.gz)

# Debian packages of this tree for this system.
deb: all
	+@sh rocks/deb.sh $(B)/deb $(MAKE) B=$(B)

clean:
	rm -rf build

help:
	@printf '%s\n' 'make             the CPU build, into build/, for this machine; all-levels: for all processors of its kind' \
	  'make deps        install what building and testing need, from Debian; deps-dev: the tools of lint too; deps-hosts: Neovim, nginx, LOVE' \
	  'make demo        train a small network on Fashion-MNIST' \
	  'make test        all specs but the slow ones; test-full: all, with more cases' \
	  'make test-arm64  specs on the build for arm64, by qemu-user' \
	  'make asan        the specs under AddressSanitizer and UBSan (gcc); ubsan-clang, tsan, valgrind' \
	  'make faults      saving on full disks, with failing calls, killed at random points (MOTH_CASES=1000)' \
	  'make edge        the runtime of exported programs for C: CROSS=aarch64-linux-gnu- EDGE_ISA=avx2 OPS_OF="a.mte b.mte" (docs/deploy.md)' \
	  'make CROSS=aarch64-linux-gnu   for arm64, into build/aarch64; `make deps CROSS=aarch64-linux-gnu` installs the compiler' \
	  'make cuda        the CUDA backend, where nvcc is; cuda-release: for all GPUs; cudaemu: its emulation' \
  'make parity      against PyTorch, onnxruntime and others, where python3 has them' \
  'make bridges     with the packages of others, which it installs: a table in docs/bridges.md (BRIDGE="numpy gguf")' \
  'make everywhere  every model exported, reloaded, run from C and in onnxruntime: a table of errors (MODELS="vgg16 GPT")' \
	  'make soak        a million steps of a training: what the process holds stays (MOTH_SOAK=1000000)' \
	  'make coverage    lines and branches of the C core that the specs reach' \
	  'make lint        luacheck, clang-format, and all warnings as errors by gcc and clang' \
	  'make bench       speed; make bench-ops, of each op; make fuzz FUZZ_SECONDS=25 or FUZZ_RUNS=1000000: parsers, calls, hooks, C API, binding' \
	  'make bundle      LuaJIT, busted and what they need as a relocatable archive; BUNDLE=openmp: with OpenBLAS' \
	  'make gpu-check   on a machine with a GPU: build, specs, figures beside PyTorch; OUT=folder' \
	  'make site        the guides and the reference, with a search: build/site/index.html; pictures: those of the guides' \
	  'make install     PREFIX=/usr/local DESTDIR=; uninstall; the rock: luarocks make rocks/moth-scm-1.rockspec' \
	  'make dist        the source archive of the last commit, with a rockspec of its version: build/dist' \
	  'make deb         Debian packages for this system: build/deb' \
	  'make clean       remove build/' \
	  'Variables: V=1 shows commands, B=dir builds elsewhere, CC, CFLAGS, SPECS=spec/io or --tags=quick'
