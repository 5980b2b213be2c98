/* CUDA's header for sources that src/emu/nvcc.lua compiles. */
#include "emu/launch.h"
