/*
 * The stand-in for libcuda.so.1: it tells how many GPUs there are and which,
 * from the simulated NVML beside it. It runs nothing: there is no hardware.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
	CUDA_ERROR_SYSTEM_NOT_READY = 802,
};

static struct {
	void *library;
	int (*init)(void);
	int (*count)(unsigned int *count);
	int (*version)(int *version);
	int (*handle)(unsigned int index, void **device);
	int (*name)(void *device, char *name, unsigned int length);
} nvml;

/* The library that lies beside this one, else the one the loader knows. */
static void *open_nvml(void)
{
	char path[PATH_MAX];
	const char *slash;
	Dl_info self;
	void *library = NULL;

	if (dladdr(&nvml, &self) && (slash = strrchr(self.dli_fname, '/')) &&
	    snprintf(path, sizeof path, "%.*s/libnvidia-ml.so.1", (int)(slash - self.dli_fname),
		     self.dli_fname) < (int)sizeof path)
		library = dlopen(path, RTLD_NOW);
	return library ? library : dlopen("libnvidia-ml.so.1", RTLD_NOW);
}

static bool load_nvml(void)
{
	if (nvml.library)
		return true;
	nvml.library = open_nvml();
	if (!nvml.library)
		return false;
	*(void **)&nvml.init = dlsym(nvml.library, "nvmlInit_v2");
	*(void **)&nvml.count = dlsym(nvml.library, "nvmlDeviceGetCount_v2");
	*(void **)&nvml.version = dlsym(nvml.library, "nvmlSystemGetCudaDriverVersion_v2");
	*(void **)&nvml.handle = dlsym(nvml.library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml.name = dlsym(nvml.library, "nvmlDeviceGetName");
	return nvml.init && nvml.count && nvml.version && nvml.handle && nvml.name;
}

static bool initialized;

SIM_API int cuInit(unsigned int flags);
SIM_API int cuDriverGetVersion(int *version);
SIM_API int cuDeviceGetCount(int *count);
SIM_API int cuDeviceGet(int *device, int ordinal);
SIM_API int cuDeviceGetName(char *name, int length, int device);

SIM_API int cuInit(unsigned int flags)
{
	unsigned int count;

	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (initialized)
		return CUDA_SUCCESS;
	if (!load_nvml())
		return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	if (nvml.init() != NVML_SUCCESS)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	initialized = true;
	return nvml.count(&count) == NVML_SUCCESS && count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

SIM_API int cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (!initialized)
		cuInit(0);
	if (!initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	return nvml.version(version) == NVML_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_SYSTEM_NOT_READY;
}

SIM_API int cuDeviceGetCount(int *count)
{
	unsigned int n;

	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	if (!initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (nvml.count(&n) != NVML_SUCCESS)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	*count = (int)n;
	return CUDA_SUCCESS;
}

SIM_API int cuDeviceGet(int *device, int ordinal)
{
	int count, result = cuDeviceGetCount(&count);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (ordinal < 0 || ordinal >= count)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

SIM_API int cuDeviceGetName(char *name, int length, int device)
{
	char full[256];
	void *gpu;

	if (!initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!name || length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (device < 0 || nvml.handle((unsigned int)device, &gpu) != NVML_SUCCESS ||
	    nvml.name(gpu, full, sizeof full) != NVML_SUCCESS)
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)length, "%s", full);
	return CUDA_SUCCESS;
}
