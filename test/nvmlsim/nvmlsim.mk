# The GPU simulator: the daemon and the files of the driver root that it emits.
# The root Makefile includes this file; it also stands alone, run from the
# repository's root with NVMLSIM_BIN naming another directory.

NVMLSIM_BIN ?= bin
NVMLSIM_CC ?= $(if $(filter default,$(origin CC)),gcc,$(CC))
NVMLSIM_GOFLAGS ?= -trimpath
NVMLSIM_CFLAGS ?= -std=gnu11 -O2 -g -Wall -Wextra -Werror

nvmlsim_shim := test/nvmlsim/shim
nvmlsim_headers := $(nvmlsim_shim)/sim.h $(nvmlsim_shim)/zz_generated.functions.inc
nvmlsim_library := $(addprefix $(nvmlsim_shim)/,nvml.c marshal.c connection.c nodes.c address.c)
nvmlsim_files := $(addprefix $(NVMLSIM_BIN)/,libnvidia-ml.so.1 libcuda.so.1 libnvidia-sandboxutils.so.1 nvidia-smi)
# One program under two names, without a C library: it runs in any container.
nvmlsim_mps := $(addprefix $(NVMLSIM_BIN)/,nvidia-cuda-mps-control nvidia-cuda-mps-server)

# nodelete: a client may unload the library while another of its threads still
# waits in it for an event.
nvmlsim_shared = $(NVMLSIM_CC) $(NVMLSIM_CFLAGS) -fPIC -fvisibility=hidden -shared \
	-Wl,-soname,$(@F) -Wl,-z,defs -Wl,-z,nodelete

.PHONY: nvml-sim
nvml-sim: $(nvmlsim_files) ## Build the GPU simulator: bin/nvml-sim and its libraries
	$(COMPILE) go build $(NVMLSIM_GOFLAGS) -o $(NVMLSIM_BIN)/nvml-sim ./test/nvmlsim/cmd/nvml-sim
	CGO_ENABLED=0 $(COMPILE) go build $(NVMLSIM_GOFLAGS) -ldflags "-s -w" -o $(firstword $(nvmlsim_mps)) ./test/nvmlsim/cmd/nvidia-cuda-mps-control
	cp -f $(nvmlsim_mps)

.PHONY: nvml-sim-libraries
nvml-sim-libraries: $(nvmlsim_files)

$(NVMLSIM_BIN)/libnvidia-ml.so.1: $(nvmlsim_library) $(nvmlsim_headers)
	@mkdir -p $(@D)
	$(nvmlsim_shared) -o $@ $(nvmlsim_library) -ldl -lpthread

$(NVMLSIM_BIN)/libcuda.so.1: $(nvmlsim_shim)/cuda.c $(nvmlsim_shim)/sim.h
	@mkdir -p $(@D)
	$(nvmlsim_shared) -o $@ $< -ldl

$(NVMLSIM_BIN)/libnvidia-sandboxutils.so.1: $(nvmlsim_shim)/sandboxutils.c $(nvmlsim_shim)/sim.h
	@mkdir -p $(@D)
	$(nvmlsim_shared) -o $@ $<

$(NVMLSIM_BIN)/nvidia-smi: $(nvmlsim_shim)/nvidia-smi.c
	@mkdir -p $(@D)
	$(NVMLSIM_CC) $(NVMLSIM_CFLAGS) -o $@ $< -ldl
