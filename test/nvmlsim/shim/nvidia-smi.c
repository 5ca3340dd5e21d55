/*
 * The stand-in for nvidia-smi: it lists GPUs as the real one does and does
 * nothing else. It knows nothing of the simulator; it asks the NVML library
 * that the loader finds, or the one of the driver root that it lies in.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *device;

enum { NOT_FOUND = 6 }; /* of nvmlReturn_t */

static void *library;

static void *symbol(const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "nvidia-smi: the NVML library has no %s; it is not the simulator's\n", name);
		exit(1);
	}
	return found;
}

/* The driver root's own library comes first: bin and lib64 are neighbours. */
static void load(void)
{
	char self[PATH_MAX] = "", path[PATH_MAX + 64];

	if (readlink("/proc/self/exe", self, sizeof self - 1) > 0) {
		snprintf(path, sizeof path, "%s/../lib64/libnvidia-ml.so.1", dirname(self));
		library = dlopen(path, RTLD_NOW);
	}
	if (!library)
		library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system: %s\n", dlerror());
		exit(12);
	}
}

static void check(int result, const char *what)
{
	const char *(*text)(int);

	if (result == 0)
		return;
	*(void **)&text = symbol("nvmlErrorString");
	fprintf(stderr, "nvidia-smi: %s: %s\n", what, text(result));
	exit(result == 9 ? 9 : 255);
}

static void initialize(void)
{
	int (*init)(void);

	load();
	*(void **)&init = symbol("nvmlInit_v2");
	check(init(), "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver");
}

/* The MIG devices of a GPU, which stand below it. */
static void list_mig_devices(device gpu)
{
	int (*most)(device, unsigned int *), (*handle)(device, unsigned int, device *);
	int (*name)(device, char *, unsigned int), (*uuid)(device, char *, unsigned int);
	char name_text[96], uuid_text[96], *profile;
	unsigned int i, n;
	device mig;
	int result;

	*(void **)&most = symbol("nvmlDeviceGetMaxMigDeviceCount");
	*(void **)&handle = symbol("nvmlDeviceGetMigDeviceHandleByIndex");
	*(void **)&name = symbol("nvmlDeviceGetName");
	*(void **)&uuid = symbol("nvmlDeviceGetUUID");
	check(most(gpu, &n), "count the MIG devices of a GPU");
	for (i = 0; i < n; i++) {
		result = handle(gpu, i, &mig);
		if (result == NOT_FOUND)
			continue;
		check(result, "find a MIG device");
		check(name(mig, name_text, sizeof name_text), "read a MIG device's name");
		check(uuid(mig, uuid_text, sizeof uuid_text), "read a MIG device's UUID");
		profile = strstr(name_text, "MIG ");
		printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile ? profile + 4 : name_text, i, uuid_text);
	}
}

static int list(void)
{
	int (*count)(unsigned int *), (*handle)(unsigned int, device *);
	int (*name)(device, char *, unsigned int), (*uuid)(device, char *, unsigned int);
	char name_text[96], uuid_text[96];
	unsigned int i, n;
	device gpu;

	initialize();
	*(void **)&count = symbol("nvmlDeviceGetCount_v2");
	*(void **)&handle = symbol("nvmlDeviceGetHandleByIndex_v2");
	*(void **)&name = symbol("nvmlDeviceGetName");
	*(void **)&uuid = symbol("nvmlDeviceGetUUID");
	check(count(&n), "count the GPUs");
	if (n == 0) {
		printf("No devices found.\n");
		return 6;
	}
	for (i = 0; i < n; i++) {
		check(handle(i, &gpu), "find a GPU");
		check(name(gpu, name_text, sizeof name_text), "read a GPU's name");
		check(uuid(gpu, uuid_text, sizeof uuid_text), "read a GPU's UUID");
		printf("GPU %u: %s (UUID: %s)\n", i, name_text, uuid_text);
		list_mig_devices(gpu);
	}
	return 0;
}

static int version(void)
{
	int (*driver)(char *, unsigned int), (*nvml)(char *, unsigned int), (*cuda)(int *);
	char driver_text[80], nvml_text[80];
	int cuda_number;

	initialize();
	*(void **)&driver = symbol("nvmlSystemGetDriverVersion");
	*(void **)&nvml = symbol("nvmlSystemGetNVMLVersion");
	*(void **)&cuda = symbol("nvmlSystemGetCudaDriverVersion_v2");
	check(driver(driver_text, sizeof driver_text), "read the driver's version");
	check(nvml(nvml_text, sizeof nvml_text), "read the library's version");
	check(cuda(&cuda_number), "read the CUDA version");
	printf("NVIDIA-SMI version  : simulator (nvml-sim)\n");
	printf("NVML version        : %s\n", nvml_text);
	printf("DRIVER version      : %s\n", driver_text);
	printf("CUDA Version        : %d.%d\n", cuda_number / 1000, cuda_number % 1000 / 10);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && (!strcmp(argv[1], "-L") || !strcmp(argv[1], "--list-gpus")))
		return list();
	if (argc == 2 && !strcmp(argv[1], "--version"))
		return version();
	fprintf(stderr, "nvidia-smi: this is the GPU simulator's stand-in, which knows -L and --version only\n");
	return 1;
}
