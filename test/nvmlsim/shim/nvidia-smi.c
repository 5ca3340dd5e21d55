/*
 * The stand-in for nvidia-smi: it lists GPUs, shows and sets their time slices,
 * and resets them, as the real one does, and does nothing else. It asks the NVML library
 * of the driver root that it lies in, or the one that the loader finds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

typedef void *device;

enum { INVALID_ARGUMENT = 2, NO_PERMISSION = 4, NOT_FOUND = 6, GPU_IS_LOST = 15, IN_USE = 19, INVALID_STATE = 29 }; /* of nvmlReturn_t */

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

/*
 * nvidia-smi compute-policy. That a failure is the exit status, and its texts, are
 * the real tool's; its text of a success and its list are guessed.
 */
enum { TIMESLICES = 4, MAX_TARGETS = 64 };

static const char *const timeslices[TIMESLICES] = {"Default", "Short", "Medium", "Long"};

static int policy_usage(FILE *to)
{
	fprintf(to, "\n"
		    "    Compute Policy -- Control and list compute policies.\n\n"
		    "    Usage: nvidia-smi compute-policy [options]\n\n"
		    "    Options include:\n"
		    "    [-i | --id]: GPU device ID's. Provide comma\n"
		    "                 separated values for more than one device\n\n"
		    "    [-l | --list]: List all compute policies\n\n"
		    "    [ | --set-timeslice]: Set timeslice config for a GPU:\n"
		    "                          0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG\n\n"
		    "    [-h | --help]: Display help information\n");
	return to == stdout ? 0 : INVALID_ARGUMENT;
}

/* A time slice by number or by name; -1 for what is neither. */
static int parse_timeslice(const char *text)
{
	int i;

	if (text[0] >= '0' && text[0] < '0' + TIMESLICES && !text[1])
		return text[0] - '0';
	for (i = 0; i < TIMESLICES; i++) {
		if (!strcasecmp(text, timeslices[i]))
			return i;
	}
	return -1;
}

static device find_gpu(const char *id)
{
	int (*by_index)(unsigned int, device *), (*by_text)(const char *, device *);
	unsigned int index;
	device gpu;
	int result, used = 0;

	*(void **)&by_index = symbol("nvmlDeviceGetHandleByIndex_v2");
	if (sscanf(id, "%u%n", &index, &used) == 1 && !id[used])
		result = by_index(index, &gpu);
	else {
		*(void **)&by_text = symbol(strncmp(id, "GPU-", 4) ? "nvmlDeviceGetHandleByPciBusId_v2"
								   : "nvmlDeviceGetHandleByUUID");
		result = by_text(id, &gpu);
	}
	if (result == 0)
		return gpu;
	fprintf(stderr, "No devices were found: the machine has no GPU %s\n", id);
	exit(NOT_FOUND);
}

/* The GPUs that the list names, all of them if there is none; how many. */
static unsigned int find_gpus(char *ids, device *gpus)
{
	int (*count)(unsigned int *), (*by_index)(unsigned int, device *);
	unsigned int i, n = 0;
	char *id, *rest;

	for (id = ids ? strtok_r(ids, ",", &rest) : NULL; id && n < MAX_TARGETS; id = strtok_r(NULL, ",", &rest))
		gpus[n++] = find_gpu(id);
	if (ids)
		return n;
	*(void **)&count = symbol("nvmlDeviceGetCount_v2");
	*(void **)&by_index = symbol("nvmlDeviceGetHandleByIndex_v2");
	check(count(&n), "count the GPUs");
	for (i = 0; i < n && i < MAX_TARGETS; i++)
		check(by_index(i, &gpus[i]), "find a GPU");
	return i;
}

static unsigned int index_of(device gpu)
{
	int (*get)(device, unsigned int *);
	unsigned int index = 0;

	*(void **)&get = symbol("nvmlDeviceGetIndex");
	check(get(gpu, &index), "read a GPU's index");
	return index;
}

static int set_timeslice(device *gpus, unsigned int n, unsigned int timeslice)
{
	int (*set)(device, unsigned int), result, worst = 0;
	const char *(*text)(int);
	unsigned int i;

	*(void **)&set = symbol("nvmlSimDeviceSetTimeslice");
	*(void **)&text = symbol("nvmlErrorString");
	for (i = 0; i < n; i++) {
		result = set(gpus[i], timeslice);
		if (result == 0) {
			printf("Set timeslice policy to %s for GPU %u\n", timeslices[timeslice], index_of(gpus[i]));
			continue;
		}
		printf("Failed to set timeslice policy with value %s for GPU %u : %s\n",
		       timeslices[timeslice], index_of(gpus[i]), text(result));
		worst = result;
	}
	if (worst)
		printf("Failed to set timeslice for requested devices : %s\n", text(worst));
	return worst > 255 ? 255 : worst;
}

static int list_timeslices(device *gpus, unsigned int n)
{
	int (*get)(device, unsigned int *), result;
	unsigned int i, timeslice;

	*(void **)&get = symbol("nvmlSimDeviceGetTimeslice");
	for (i = 0; i < n; i++) {
		result = get(gpus[i], &timeslice);
		if (result != 3)
			check(result, "read a GPU's time slice");
		printf("GPU %u:\n    Timeslice: %s\n", index_of(gpus[i]),
		       result || timeslice >= TIMESLICES ? "N/A" : timeslices[timeslice]);
	}
	return 0;
}

static int compute_policy(int argc, char **argv)
{
	static const struct option options[] = {{"id", required_argument, NULL, 'i'},
						{"list", no_argument, NULL, 'l'},
						{"set-timeslice", required_argument, NULL, 't'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	device gpus[MAX_TARGETS];
	char *ids = NULL;
	int option, timeslice = -1, lists = 0;

	while ((option = getopt_long(argc, argv, "i:lh", options, NULL)) != -1) {
		if (option == 'h')
			return policy_usage(stdout);
		if (option == 'i')
			ids = optarg;
		else if (option == 'l')
			lists = 1;
		else if (option != 't' || (timeslice = parse_timeslice(optarg)) < 0)
			return policy_usage(stderr);
	}
	if (optind < argc || lists == (timeslice >= 0))
		return policy_usage(stderr);
	initialize();
	if (lists)
		return list_timeslices(gpus, find_gpus(ids, gpus));
	return set_timeslice(gpus, find_gpus(ids, gpus), (unsigned int)timeslice);
}

/* nvidia-smi --query-gpu=compute_mode --format=csv,noheader */
static int query_compute_mode(void)
{
	static const char *const modes[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
	int (*get)(device, unsigned int *);
	device gpus[MAX_TARGETS];
	unsigned int i, n, mode;

	initialize();
	*(void **)&get = symbol("nvmlDeviceGetComputeMode");
	n = find_gpus(NULL, gpus);
	for (i = 0; i < n; i++) {
		check(get(gpus[i], &mode), "read a GPU's compute mode");
		printf("%s\n", mode < sizeof modes / sizeof modes[0] ? modes[mode] : "[Unknown Error]");
	}
	return 0;
}

/*
 * nvidia-smi --gpu-reset -i IDS. The texts of a success and of a GPU in use are the
 * real tool's (NVIDIA/NVSentinel #1690), and so is their exit status; that a GPU has
 * to be reset together with others is in its manual page, and the words are guessed.
 */
static int reset(char *ids)
{
	int (*reset_gpu)(device), (*pci)(device, void *), result, worst = 0, used = 0;
	const char *(*text)(int);
	device gpus[MAX_TARGETS];
	unsigned int i, n;
	struct {
		char legacy[16];
		unsigned int numbers[5];
		char bus_id[32];
	} address;

	initialize();
	*(void **)&reset_gpu = symbol("nvmlSimDeviceReset");
	*(void **)&pci = symbol("nvmlDeviceGetPciInfo_v3");
	*(void **)&text = symbol("nvmlErrorString");
	n = find_gpus(ids, gpus);
	for (i = 0; i < n; i++) {
		memset(&address, 0, sizeof address);
		pci(gpus[i], &address);
		result = reset_gpu(gpus[i]);
		if (result == 0) {
			printf("GPU %s was successfully reset.\n", address.bus_id);
			continue;
		}
		if (!worst)
			printf("The following GPUs could not be reset:\n");
		worst = result;
		used += result == IN_USE;
		if (result == IN_USE)
			printf("  GPU %s: In use by another client\n", address.bus_id);
		else if (result == INVALID_STATE)
			printf("  GPU %s: It must be reset in the same command as the GPUs that NVLink connects it with\n", address.bus_id);
		else
			printf("  GPU %s: %s\n", address.bus_id, text(result));
	}
	if (used)
		printf("\n%d device is currently being used by one or more other processes (e.g. Fabric Manager, CUDA application, "
		       "graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi). "
		       "Please first kill all processes using this device and all compute applications running in the system.\n", used);
	if (!worst)
		printf("All done.\n");
	return worst == 0 || worst == NO_PERMISSION || worst == GPU_IS_LOST ? worst : 255;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--query-gpu=compute_mode") && !strcmp(argv[2], "--format=csv,noheader"))
		return query_compute_mode();
	if (argc > 1 && !strcmp(argv[1], "compute-policy"))
		return compute_policy(argc - 1, argv + 1);
	if (argc > 1 && (!strcmp(argv[1], "-r") || !strcmp(argv[1], "--gpu-reset")) &&
	    (argc == 2 || (argc == 4 && !strcmp(argv[2], "-i"))))
		return reset(argc == 4 ? argv[3] : NULL);
	if (argc == 2 && (!strcmp(argv[1], "-L") || !strcmp(argv[1], "--list-gpus")))
		return list();
	if (argc == 2 && !strcmp(argv[1], "--version"))
		return version();
	fprintf(stderr, "nvidia-smi: this is the GPU simulator's stand-in, which knows -L, --version, compute-policy,\n"
			"--gpu-reset [-i IDS] and --query-gpu=compute_mode --format=csv,noheader only\n");
	return 1;
}
