# The edge library (docs/deploy.md): `make edge [CROSS=aarch64-linux-gnu-] [OPS_OF="a.mte b.mte"]`.
#
# libmoth_edge.a has the runtime for files of moth.edge.export (src/edge), with the kernels of common ops, or of those that
# the files in OPS_OF call, for one instruction set; edge-run runs a file. The same sources as libmoth's, without Lua,
# autograd, threads and other libraries: src/edge/host stands in their place. Everything that is not reached from the functions
# of moth_edge.h is left out by the linker.
CROSS    ?=
OPS_OF   ?=
EDGE_DTYPES ?= float32 int64 bool
EDGE_CC  := $(if $(CROSS),$(CROSS)gcc,$(CC))
EDGE_LD  ?= $(if $(CROSS),$(CROSS)ld,ld)
EDGE_OBJCOPY ?= $(if $(CROSS),$(CROSS)objcopy,objcopy)
EDGE_AR  ?= $(if $(CROSS),$(CROSS)ar,ar)
EDGE     ?= $(B)/edge$(if $(CROSS),-$(CROSS:-=))
EDGE_MARCH ?= $(if $(CROSS),,$(ISA_generic))
# Of the kernels: "generic" is what EDGE_MARCH says, "avx2" and "avx512" are checked for when a model is loaded.
EDGE_ISA ?= generic
EDGE_LEVEL = $(if $(filter avx512,$(EDGE_ISA)),2,$(if $(filter avx2,$(EDGE_ISA)),1,0))
ifeq ($(filter generic avx2 avx512,$(EDGE_ISA)),)
$(error EDGE_ISA is generic, avx2 or avx512, got '$(EDGE_ISA)')
endif
# 0: weights are packed at each call, and not once into memory of their own.
EDGE_PACK ?= 1
EDGE_C    = $(wildcard src/edge/host/*.c) $(filter-out src/edge/whole.c src/edge/edge_run.c,$(wildcard src/edge/*.c)) \
  $(addprefix src/core/,arena.c dtype.c error.c expression.c tensor.c random.c environment.c thread.c kept.c) \
  $(addprefix src/dispatch/,canonical.c result.c call.c eval.c pattern.c) $(wildcard src/dispatch/shape_*.c) \
  $(addprefix src/io/,json.c safetensors.c elements.c) \
  $(EDGE_KERNELS) $(GEN)/shapes.c
EDGE_INCLUDES = -Isrc/edge/host/include -Isrc -I$(EDGE)/gen -I$(GEN) -I.
EDGE_CFLAGS = -std=gnu17 -D_GNU_SOURCE -DMOTH_EDGE_PACK=$(EDGE_PACK) -DMOTH_EDGE_LEVEL=$(EDGE_LEVEL) $(EDGE_MARCH) -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections \
  $(if $(SAN),-g -fsanitize=$(SAN) -fno-omit-frame-pointer,-fno-asynchronous-unwind-tables) $(WARN) -Wno-unknown-pragmas
EDGE_OPT_CORE = $(if $(SAN),-O1,-Os)
# Vectorised: they are most of the time, and a fifth larger than with -Os.
EDGE_OPT_KERN = $(if $(filter-out generic,$(EDGE_ISA)),$(ISA_$(EDGE_ISA))) $(if $(SAN),-O1,-O2 -ftree-vectorize $(if $(findstring clang,$(EDGE_CC)),,-fvect-cost-model=cheap)) \
  -Wno-tautological-compare -ffp-contract=fast \
  -fno-math-errno -fno-trapping-math -fwrapv
ifneq ($(filter edge-libs,$(MAKECMDGOALS)),)
$(shell mkdir -p $(EDGE)/gen && { echo '$(OPS_OF) $(EDGE_DTYPES) $(EDGE_CC) $(EDGE_CFLAGS) $(EDGE_OPT_CORE) $(EDGE_OPT_KERN)' | \
  cmp -s - $(EDGE)/.flags || echo '$(OPS_OF) $(EDGE_DTYPES) $(EDGE_CC) $(EDGE_CFLAGS) $(EDGE_OPT_CORE) $(EDGE_OPT_KERN)' > $(EDGE)/.flags; })
include $(EDGE)/gen/sources.mk
endif
# One set of names with the whole library's: GEN_SOURCES and KERNEL_SOURCES are the edge library's here.
EDGE_O    = $(patsubst %.c,$(EDGE)/obj/%.o,$(subst $(EDGE)/gen/,gen/,$(subst $(GEN)/,whole/,$(EDGE_C) $(GEN_SOURCES) $(KERNEL_SOURCES))))
$(EDGE)/gen/sources.mk: $(EDGE)/.flags $(GEN)/sources.mk src/ops/edge.lua $(OPS_OF)
	$(call say,GEN,$(EDGE)/gen)
	$(Q)$(LUAJIT) src/ops/gen.lua $(EDGE)/gen --edge "$(EDGE_DTYPES)" "$(OPS_OF)"
define edge_rule
$(EDGE)/obj/$(1)%.o: $(2)%.c $(EDGE)/gen/sources.mk
	$$(call say,CC,$$<)
	@mkdir -p $$(@D)
	$$(Q)$(EDGE_CC) $$(EDGE_INCLUDES) $(EDGE_CFLAGS) $(3) -MMD -MP -c -o $$@ $$<

endef
$(eval $(call edge_rule,gen/kernels/,$(EDGE)/gen/kernels/,$(EDGE_OPT_KERN)))
$(eval $(call edge_rule,gen/,$(EDGE)/gen/,$(EDGE_OPT_CORE)))
$(eval $(call edge_rule,whole/,$(GEN)/,$(EDGE_OPT_CORE)))
$(eval $(call edge_rule,,,$(EDGE_OPT_CORE)))
# One object, with what the API needs and its names alone: a program that links it has no other name of moth's.
$(EDGE)/libmoth_edge.a: $(EDGE_O)
	$(call say,AR,$@)
	$(Q)$(EDGE_LD) -r --gc-sections $(addprefix -u ,$(EDGE_API)) -o $(EDGE)/moth_edge.o $(EDGE_O)
	$(Q)$(EDGE_OBJCOPY) $(addprefix --keep-global-symbol=,$(EDGE_API)) $(if $(SAN),,--strip-unneeded) $(EDGE)/moth_edge.o
	$(Q)rm -f $@ && $(EDGE_AR) rcs $@ $(EDGE)/moth_edge.o
	$(Q)cp src/edge/moth_edge.h $(EDGE)/
EDGE_API := $(addprefix moth_edge_,load load_memory load_fused free inputs outputs dims input output dim arena run reset error)
$(EDGE)/edge-run: src/edge/edge_run.c $(EDGE)/libmoth_edge.a
	$(call say,LD,$@)
	$(Q)$(EDGE_CC) -std=c99 -D_POSIX_C_SOURCE=199309L -Os $(if $(SAN),-fsanitize=$(SAN),-s) $(WARN) -Isrc/edge -o $@ $< $(EDGE)/libmoth_edge.a -lm
edge-libs: $(EDGE)/libmoth_edge.a $(EDGE)/edge-run
	@:
ifneq ($(filter edge-libs,$(MAKECMDGOALS)),)
-include $(EDGE_O:.o=.d)
endif
