# For the Makefile of a library of ops (MOTH_LIBRARY of moth.h) that is built ahead of time:
#
#     EXTENSION = my_ops
#     SOURCES   = add.c add.cu
#     include $(shell luajit -e 'io.write(require("moth").cpp_extension.makefile())')
#
# makes my_ops.so of .c, .cc, .cpp and .cu files; `make install LIBDIR=FOLDER` puts it into a folder of package.cpath, where
# moth.library.load "my_ops" finds it. CFLAGS, CXXFLAGS, NVCCFLAGS and LDFLAGS are added; NVCC and LUAJIT name programs.
LUAJIT   ?= luajit
NVCC     ?= nvcc
MOTH_ASK  = $(shell $(LUAJIT) -e 'local e = require("moth").cpp_extension io.write(table.concat(e.$(1)(), " "))')
MOTH_INC := $(patsubst %,-I%,$(call MOTH_ASK,include_paths))
MOTH_LIB := $(call MOTH_ASK,library_paths)
MOTH_SO  := $(shell $(LUAJIT) -e 'require "moth" io.write(require("moth_lua").soname)')
MOTH_OBJ := $(patsubst %,%.o,$(SOURCES))
MOTH_LD   = $(if $(filter %.cu,$(SOURCES)),$(NVCC) -shared -cudart shared -Xlinker -rpath$(,)$(MOTH_LIB),\
  $(if $(filter %.cc %.cpp,$(SOURCES)),$(CXX),$(CC)) -shared -Wl$(,)-rpath$(,)$(MOTH_LIB))
,        := ,

all: $(EXTENSION).so
$(EXTENSION).so: $(MOTH_OBJ)
	$(MOTH_LD) -o $@ $^ -L$(MOTH_LIB) -l:$(MOTH_SO) $(LDFLAGS)
%.c.o: %.c
	$(CC) -O2 $(CFLAGS) -fPIC $(MOTH_INC) -c -o $@ $<
%.cc.o: %.cc
	$(CXX) -O2 $(CXXFLAGS) -fPIC $(MOTH_INC) -c -o $@ $<
%.cpp.o: %.cpp
	$(CXX) -O2 $(CXXFLAGS) -fPIC $(MOTH_INC) -c -o $@ $<
%.cu.o: %.cu
	$(NVCC) -O2 $(NVCCFLAGS) -Xcompiler -fPIC $(MOTH_INC) -c -o $@ $<
$(SOURCES): ; # make knows a rule that would link add.cu from add.cu.o
install: all
	install -D -m 755 -t $(DESTDIR)$(LIBDIR) $(EXTENSION).so
clean:
	rm -f $(EXTENSION).so $(MOTH_OBJ)
.PHONY: all install clean
