/*
 * The stand-in for libnvidia-sandboxutils.so.1, which drivers have since R560 and
 * nvcdi prefers to NVML. The real one crashes its process when it is initialised
 * again and again (NVIDIA/nvidia-container-toolkit#935); this one ends it at the
 * second time, so that no test passes that uses it. It tells nothing of GPUs.
 */
#include "sim.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	SANDBOXUTILS_SUCCESS = 0,
	SANDBOXUTILS_ERROR_NOT_SUPPORTED = 2,
};

SIM_API int nvSandboxUtilsInit(void *input);
SIM_API int nvSandboxUtilsShutdown(void);
SIM_API int nvSandboxUtilsGetDriverVersion(char *version, unsigned int length);
SIM_API int nvSandboxUtilsGetGpuResource(void *request);
SIM_API int nvSandboxUtilsGetFileContent(char *path, char *content, unsigned int *size);
SIM_API const char *nvSandboxUtilsErrorString(int code);

/* Unloading the library does not forget it: -z nodelete. */
static atomic_int inits;

SIM_API int nvSandboxUtilsInit(void *input)
{
	(void)input;
	if (atomic_fetch_add(&inits, 1) > 0) {
		fputs("libnvidia-sandboxutils.so.1 is initialised for the second time in one process\n", stderr);
		abort();
	}
	return SANDBOXUTILS_SUCCESS;
}

SIM_API int nvSandboxUtilsShutdown(void) { return SANDBOXUTILS_SUCCESS; }

SIM_API int nvSandboxUtilsGetDriverVersion(char *version, unsigned int length)
{
	(void)version, (void)length;
	return SANDBOXUTILS_ERROR_NOT_SUPPORTED;
}

SIM_API int nvSandboxUtilsGetGpuResource(void *request)
{
	(void)request;
	return SANDBOXUTILS_ERROR_NOT_SUPPORTED;
}

SIM_API int nvSandboxUtilsGetFileContent(char *path, char *content, unsigned int *size)
{
	(void)path, (void)content, (void)size;
	return SANDBOXUTILS_ERROR_NOT_SUPPORTED;
}

SIM_API const char *nvSandboxUtilsErrorString(int code)
{
	return code == SANDBOXUTILS_SUCCESS ? "success" : "not supported by the simulator";
}
