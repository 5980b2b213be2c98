# The CUDA backend: libmoth_cuda.so by nvcc; and from the same sources by g++ libmoth_cudaemu.so, on libmoth_emu.so,
# which emulates CUDA: language, runtime, cuBLASLt, cuSOLVER, cuFFT and NVRTC. Included by the Makefile; both backends link against
# libmoth.so, which opens them at run time.

CUDA_ARCH   ?= 90a
CUDA_PTX    ?=
CXX         := $(if $(filter default undefined,$(origin CXX)),g++,$(CXX))
CUDA_CU      = $(sort $(wildcard src/cuda/*.cu kernels/cuda/*.cu)) $(CUDA_SOURCES)
cuda_object  = $(patsubst %,$(B)/$(1)/%.o,$(patsubst $(B)/%,%,$(2)))
CUDA_O       = $(call cuda_object,cuda,$(CUDA_CU))
EMU_O        = $(call cuda_object,emu,$(CUDA_CU))
EMU_LIB_O    = $(call cuda_object,emu,$(wildcard src/emu/*.cc))

# Code for an architecture is compiled for it by name: wgmma and kin exist in 90a alone.
GENCODE      = $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$(a),code=sm_$(a)) \
  $(foreach a,$(CUDA_PTX),-gencode=arch=compute_$(a),code=compute_$(a))
# Code for many is packed tighter: a third of the size.
NVCC_FLAGS   = -std=c++20 -O3 $(GENCODE) $(if $(word 2,$(CUDA_ARCH)),--compress-mode=size) \
  -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wno-unused-function \
  --expt-relaxed-constexpr -diag-suppress 177,550,20012 $(INCLUDES) -D_GNU_SOURCE
EMU_FLAGS    = -std=c++20 -g1 -O1 -fPIC -fvisibility=hidden -fwrapv -fno-strict-aliasing -Wall -Wextra \
  -Wno-unused-function -Wno-unused-parameter -Wno-unknown-pragmas -Wno-missing-field-initializers $(WERROR) $(SAN_FLAGS) \
  $(INCLUDES) -D_GNU_SOURCE $(ISA_generic)

$(GEN)/cuda/%.cu: $(GEN)/sources.mk ;

$(B)/cuda/gen/%.cu.o: $(GEN)/%.cu $(B)/.cuda_flags
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(B)/cuda/%.cu.o: %.cu $(B)/.cuda_flags
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(B)/emu/gen/%.cu.o: $(GEN)/%.cu $(B)/.emu_flags
	$(call say,EMU,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMU_FLAGS) -MMD -MP -MF $(@:.o=.d) -x c++ -c -o $@ $<
# Everything of the emulation is seen from outside. What it compiles at run time it compiles as it was itself.
$(B)/emu/src/emu/%.o: src/emu/% $(B)/.emu_flags
	$(call say,EMU,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMU_FLAGS) -fvisibility=default -DMOTH_EMU_SOURCE='"$(CURDIR)"' -DMOTH_EMU_FLAGS='"$(strip $(SAN_FLAGS))"' \
	  -MMD -MP -MF $(@:.o=.d) -x c++ -c -o $@ $<
$(B)/emu/%.o: % $(B)/.emu_flags
	$(call say,EMU,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMU_FLAGS) -MMD -MP -MF $(@:.o=.d) -x c++ -c -o $@ $<

# No CUDA library is linked: cudart is static, the others are opened when they are first used.
$(B)/libmoth_cuda.so: $(CUDA_O) $(B)/libmoth.so
	$(call say,LD,$@)
	$(Q)$(NVCC) $(GENCODE) -shared -cudart static -o $@ $(CUDA_O) $(B)/libmoth.so \
	  -Xlinker -z,nodelete,-z,defs,-rpath,'$$ORIGIN',--exclude-libs,ALL -Xcompiler -static-libstdc++,-static-libgcc -ldl
$(B)/libmoth_emu.so: $(EMU_LIB_O)
	$(call say,LD,$@)
	$(Q)$(CXX) $(SAN_FLAGS) -shared -Wl,-z,nodelete -Wl,-z,defs -Wl,-soname,libmoth_emu.so -o $@ $(EMU_LIB_O) -ldl -lpthread
$(B)/libmoth_cudaemu.so: $(EMU_O) $(B)/libmoth.so $(B)/libmoth_emu.so
	$(call say,LD,$@)
	$(Q)$(CXX) $(SAN_FLAGS) -shared -Wl,-z,nodelete -Wl,-z,defs -Wl,-rpath,'$$ORIGIN' -o $@ $(EMU_O) $(B)/libmoth.so $(B)/libmoth_emu.so -ldl

ifneq ($(INNER),)
keep_flags   = $(shell mkdir -p $(B) && { echo '$(2)' | cmp -s - $(1) || echo '$(2)' > $(1); })
$(call keep_flags,$(B)/.cuda_flags,$(subst ','"'"',$(NVCC_FLAGS)))
$(call keep_flags,$(B)/.emu_flags,$(CXX) $(EMU_FLAGS))
-include $(CUDA_O:.o=.d) $(EMU_O:.o=.d) $(EMU_LIB_O:.o=.d)
endif
