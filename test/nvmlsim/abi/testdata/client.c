/*
 * A client in C that does what Go's binding never does: NULL pointers, wrong
 * versions and sizes, many threads, fork. The test builds
 * it together with the shim's sources under the address and undefined behaviour
 * sanitizers and runs it against a daemon that simulates a p5.48xlarge.
 */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvml.h"

#define GPUS 8

#define WANT(expression, wanted)                                                              \
	do {                                                                                  \
		long long got_ = (long long)(expression), wanted_ = (long long)(wanted);      \
		if (got_ != wanted_) {                                                        \
			printf("line %d: %s is %lld, want %lld\n", __LINE__, #expression, got_, wanted_); \
			failures++;                                                           \
		}                                                                             \
	} while (0)

static int failures;

static nvmlDevice_t device(unsigned int index)
{
	nvmlDevice_t d = {0};

	WANT(nvmlDeviceGetHandleByIndex_v2(index, &d), NVML_SUCCESS);
	return d;
}

static void before_init(void)
{
	unsigned int count = 77;

	WANT(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
	WANT(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
	WANT(nvmlUnitGetCount(&count), NVML_ERROR_UNINITIALIZED);
	WANT(count, 77);
	WANT(strcmp(nvmlErrorString(NVML_ERROR_GPU_IS_LOST), "GPU is lost"), 0);
	WANT(strcmp(nvmlErrorString((nvmlReturn_t)12345), "Unknown Error"), 0);
	WANT(strcmp(nvmlErrorString((nvmlReturn_t)-1), "Unknown Error"), 0);
}

static void null_pointers(void)
{
	nvmlDevice_t none = {0}, wild, d = device(0);
	char text[96];
	unsigned int n;

	wild.handle = (void *)0x1000;
	WANT(nvmlDeviceGetCount_v2(NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetHandleByUUID(NULL, &d), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetHandleByIndex_v2(0, NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetName(none, text, sizeof text), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetName(wild, text, sizeof text), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetName(d, NULL, sizeof text), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetMemoryInfo_v2(d, NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetFanSpeed(wild, &n), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetFanSpeed(d, NULL), NVML_ERROR_NOT_SUPPORTED);
	WANT(nvmlDeviceGetFieldValues(d, 1, NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetComputeRunningProcesses_v3(d, NULL, NULL), NVML_ERROR_INVALID_ARGUMENT);
}

static void text_buffers(void)
{
	static const char name[] = "NVIDIA H100 80GB HBM3";
	nvmlDevice_t d = device(0);
	char *exact = malloc(sizeof name), *large = malloc(1 << 20);

	WANT(nvmlDeviceGetName(d, exact, sizeof name - 1), NVML_ERROR_INSUFFICIENT_SIZE);
	WANT(nvmlDeviceGetName(d, exact, 0), NVML_ERROR_INSUFFICIENT_SIZE);
	WANT(nvmlDeviceGetName(d, exact, sizeof name), NVML_SUCCESS);
	WANT(strcmp(exact, name), 0);
	WANT(nvmlDeviceGetName(d, large, 1 << 20), NVML_SUCCESS);
	WANT(strcmp(large, name), 0);
	memset(large, 'x', (1 << 20) - 1);
	large[(1 << 20) - 1] = '\0';
	WANT(nvmlDeviceGetHandleByUUID(large, &d), NVML_ERROR_INVALID_ARGUMENT);
	free(exact);
	free(large);
}

/*
 * Each struct is on the heap with nothing behind it, so that the sanitizer sees
 * a library that touches more of it than its version has.
 */
static void versioned_structs(void)
{
	nvmlDevice_t d = device(0);
	unsigned int *word = calloc(1, sizeof *word);
	nvmlMemory_v2_t memory = {0};

	*word = 0;
	WANT(nvmlDeviceGetMemoryInfo_v2(d, (nvmlMemory_v2_t *)word), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	*word = 0x02ffffff;
	WANT(nvmlDeviceGetMemoryInfo_v2(d, (nvmlMemory_v2_t *)word), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	*word = 4 | 2U << 24;
	WANT(nvmlDeviceGetMemoryInfo_v2(d, (nvmlMemory_v2_t *)word), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	memory.version = sizeof memory | 3U << 24;
	WANT(nvmlDeviceGetMemoryInfo_v2(d, &memory), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	memory.version = nvmlMemory_v2;
	WANT(nvmlDeviceGetMemoryInfo_v2(d, &memory), NVML_SUCCESS);
	WANT(memory.total >> 20, 81559);
	free(word);
}

static void arrays(void)
{
	nvmlDevice_t d = device(0);
	nvmlGpuInstancePlacement_t *placements;
	nvmlProcessInfo_t *none = malloc(1);
	unsigned int count = 0;

	WANT(nvmlDeviceGetGpuInstancePossiblePlacements_v2(d, 19, NULL, &count), NVML_SUCCESS);
	WANT(count, 7);
	placements = malloc(count * sizeof *placements);
	count = 6;
	WANT(nvmlDeviceGetGpuInstancePossiblePlacements_v2(d, 19, placements, &count), NVML_ERROR_INSUFFICIENT_SIZE);
	WANT(count, 7);
	WANT(nvmlDeviceGetGpuInstancePossiblePlacements_v2(d, 19, placements, &count), NVML_SUCCESS);
	WANT(placements[6].start, 6);
	WANT(placements[6].size, 1);
	count = 1u << 30;
	WANT(nvmlDeviceGetGpuInstancePossiblePlacements_v2(d, 19, placements, &count), NVML_SUCCESS);
	WANT(count, 7);
	count = 0;
	WANT(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, none), NVML_SUCCESS);
	free(placements);
	free(none);
}

/*
 * The struct of an older header ends after fewer metrics, and nothing in it says so but
 * how many are asked for: it has nothing behind those here.
 */
static void counters(void)
{
	nvmlDevice_t d = device(6);
	nvmlGpmMetricsGet_t *one = calloc(1, offsetof(nvmlGpmMetricsGet_t, metrics) + sizeof one->metrics[0]);
	nvmlGpmMetricsGet_t *none = calloc(1, offsetof(nvmlGpmMetricsGet_t, metrics));
	nvmlGpmSample_t first, second, nothing = {0};
	nvmlGpmSupport_t support = {0};
	nvmlReturn_t activation;
	nvmlGpuInstancePlacement_t placement = {0, 1};
	nvmlGpuInstance_t gi;
	nvmlGpuInstanceInfo_t info;

	WANT(nvmlGpmMetricsGet(NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlGpmQueryDeviceSupport(d, &support), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	support.version = NVML_GPM_SUPPORT_VERSION;
	WANT(nvmlGpmQueryDeviceSupport(d, &support), NVML_SUCCESS);
	WANT(support.isSupportedDevice, 1);
	WANT(nvmlGpmSampleAlloc(NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlGpmSampleFree(nothing), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlGpmSampleAlloc(&first), NVML_SUCCESS);
	WANT(nvmlGpmSampleAlloc(&second), NVML_SUCCESS);
	WANT(nvmlGpmMigSampleGet(d, 0, first), NVML_ERROR_NOT_SUPPORTED);

	WANT(nvmlDeviceSetMigMode(d, NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
	WANT(nvmlDeviceCreateGpuInstanceWithPlacement(d, 19, &placement, &gi), NVML_SUCCESS);
	WANT(nvmlGpuInstanceGetInfo(gi, &info), NVML_SUCCESS);
	WANT(nvmlGpmMigSampleGet(d, info.id, nothing), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlGpmMigSampleGet(d, info.id, first), NVML_SUCCESS);
	WANT(nvmlGpmMigSampleGet(d, info.id, second), NVML_SUCCESS);

	one->numMetrics = none->numMetrics = 1;
	one->metrics[0].metricId = NVML_GPM_METRIC_GRAPHICS_UTIL;
	one->metrics[0].value = 77;
	one->sample1 = none->sample1 = first;
	one->sample2 = none->sample2 = second;
	WANT(nvmlGpmMetricsGet(one), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	one->version = none->version = NVML_GPM_METRICS_GET_VERSION;
	WANT(nvmlGpmMetricsGet(one), NVML_SUCCESS);
	WANT(one->metrics[0].nvmlReturn, NVML_SUCCESS);
	WANT(one->metrics[0].value, 0);
	none->numMetrics = 0;
	WANT(nvmlGpmMetricsGet(none), NVML_SUCCESS);
	none->numMetrics = NVML_GPM_METRIC_MAX + 1;
	WANT(nvmlGpmMetricsGet(none), NVML_ERROR_INVALID_ARGUMENT);
	none->numMetrics = 0;
	none->sample2 = nothing;
	WANT(nvmlGpmMetricsGet(none), NVML_ERROR_INVALID_ARGUMENT);

	WANT(nvmlGpmSampleFree(first), NVML_SUCCESS);
	WANT(nvmlGpmSampleFree(first), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlGpmSampleFree(second), NVML_SUCCESS);
	WANT(nvmlGpuInstanceDestroy(gi), NVML_SUCCESS);
	WANT(nvmlDeviceSetMigMode(d, NVML_DEVICE_MIG_DISABLE, &activation), NVML_SUCCESS);
	free(one);
	free(none);
}

/* Pointers, versions and arrays of the functions of GPU and compute instances. */
static void instances(void)
{
	nvmlDevice_t d = device(5), mig = {0};
	nvmlGpuInstancePlacement_t placement = {4, 4};
	nvmlGpuInstance_t gi, none = {0}, *all = calloc(2, sizeof *all);
	nvmlComputeInstanceInfo_t *info = calloc(1, sizeof *info);
	nvmlComputeInstance_t ci, nothing = {0};
	nvmlReturn_t activation = 77;
	unsigned int count = 0;
	char name[96];

	WANT(nvmlDeviceSetMigMode(d, NVML_DEVICE_MIG_ENABLE, NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceSetMigMode(d, NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
	WANT(activation, NVML_SUCCESS);
	WANT(nvmlDeviceCreateGpuInstanceWithPlacement(d, 9, NULL, &gi), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceCreateGpuInstanceWithPlacement(d, 9, &placement, NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceCreateGpuInstanceWithPlacement(d, 9, &placement, &gi), NVML_SUCCESS);
	WANT(nvmlDeviceGetGpuInstances(d, 9, all, &count), NVML_SUCCESS);
	WANT(count, 1);
	WANT(all[0].handle == gi.handle, 1);
	WANT(nvmlGpuInstanceGetInfo(none, NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlGpuInstanceDestroy(none), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlComputeInstanceDestroy(nothing), NVML_ERROR_INVALID_ARGUMENT);

	WANT(nvmlGpuInstanceCreateComputeInstance(gi, 0, NULL), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlGpuInstanceCreateComputeInstance(gi, 0, &ci), NVML_SUCCESS);
	WANT(nvmlComputeInstanceGetInfo_v2(ci, info), NVML_SUCCESS);
	WANT(info->placement.start, 0);
	WANT(info->gpuInstance.handle == gi.handle, 1);
	WANT(nvmlDeviceGetMigDeviceHandleByIndex(d, 0, &mig), NVML_SUCCESS);
	WANT(info->device.handle == mig.handle, 1);
	WANT(nvmlDeviceGetName(mig, name, sizeof name), NVML_SUCCESS);
	WANT(strcmp(name, "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"), 0);

	WANT(nvmlGpuInstanceDestroy(gi), NVML_ERROR_IN_USE);
	WANT(nvmlDeviceSetMigMode(d, NVML_DEVICE_MIG_DISABLE, &activation), NVML_SUCCESS);
	WANT(activation, NVML_ERROR_IN_USE);
	WANT(nvmlComputeInstanceDestroy(ci), NVML_SUCCESS);
	WANT(nvmlComputeInstanceDestroy(ci), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceGetName(mig, name, sizeof name), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlGpuInstanceDestroy(gi), NVML_SUCCESS);
	WANT(nvmlGpuInstanceGetInfo(gi, (nvmlGpuInstanceInfo_t *)info), NVML_ERROR_INVALID_ARGUMENT);
	WANT(nvmlDeviceSetMigMode(d, NVML_DEVICE_MIG_DISABLE, &activation), NVML_SUCCESS);
	WANT(activation, NVML_SUCCESS);
	free(all);
	free(info);
}

static void *hammer(void *argument)
{
	unsigned int index = (unsigned int)(size_t)argument % GPUS, minor = 99, i;
	char uuid[96], again[96];

	WANT(nvmlDeviceGetUUID(device(index), uuid, sizeof uuid), NVML_SUCCESS);
	for (i = 0; i < 200; i++) {
		WANT(nvmlDeviceGetMinorNumber(device(index), &minor), NVML_SUCCESS);
		WANT(minor, index);
		WANT(nvmlDeviceGetUUID(device(index), again, sizeof again), NVML_SUCCESS);
		WANT(strcmp(uuid, again), 0);
	}
	return NULL;
}

static void *wait_for_shutdown(void *set)
{
	nvmlEventData_t data;

	WANT(nvmlEventSetWait_v2(*(nvmlEventSet_t *)set, &data, 600000), NVML_ERROR_UNINITIALIZED);
	return NULL;
}

static void in_a_child(void)
{
	nvmlDevice_t d = device(3);
	unsigned int minor = 99;
	int status;
	pid_t child = fork();

	if (child == 0) {
		failures = 0;
		WANT(nvmlDeviceGetMinorNumber(d, &minor), NVML_SUCCESS);
		WANT(minor, 3);
		hammer((void *)3);
		fflush(stdout);
		_exit(failures != 0);
	}
	hammer((void *)4);
	WANT(waitpid(child, &status, 0), child);
	WANT(status, 0);
}

int main(void)
{
	pthread_t threads[16], waiter;
	nvmlEventSet_t set;
	size_t i;

	before_init();
	WANT(nvmlInit_v2(), NVML_SUCCESS);
	null_pointers();
	text_buffers();
	versioned_structs();
	arrays();
	instances();
	counters();

	WANT(nvmlEventSetCreate(&set), NVML_SUCCESS);
	WANT(nvmlDeviceRegisterEvents(device(0), nvmlEventTypeXidCriticalError, set), NVML_SUCCESS);
	pthread_create(&waiter, NULL, wait_for_shutdown, &set);
	for (i = 0; i < sizeof threads / sizeof threads[0]; i++)
		pthread_create(&threads[i], NULL, hammer, (void *)i);
	in_a_child();
	for (i = 0; i < sizeof threads / sizeof threads[0]; i++)
		pthread_join(threads[i], NULL);
	WANT(nvmlShutdown(), NVML_SUCCESS);
	pthread_join(waiter, NULL);

	if (failures == 0)
		printf("all is well\n");
	return failures != 0;
}
