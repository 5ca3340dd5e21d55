/*
 * The stand-in for nvidia-smi: it lists GPUs, answers queries of them, shows and sets their
 * time slices, and resets them, as the real one does, and does nothing else. It asks the NVML library
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

enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, GPU_IS_LOST = 15, IN_USE = 19, INVALID_STATE = 29 }; /* of nvmlReturn_t */

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
		if (result != NOT_SUPPORTED)
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

/*
 * nvidia-smi [-i IDS] --query-gpu=FIELDS --format=csv[,noheader][,nounits]: the fields that scripts ask for. Their names,
 * aliases and units are those of --help-query-gpu; what the machine does not model is [N/A], as what a board lacks.
 */
enum { TEXT = 128, MAX_FIELDS = 32 };

struct query {
	const char *name, *alias, *unit;
	int (*read)(device gpu, char *text);
};

static int read_index(device gpu, char *text)
{
	snprintf(text, TEXT, "%u", index_of(gpu));
	return 0;
}

static int read_text(const char *function, device gpu, char *text)
{
	int (*get)(device, char *, unsigned int);

	*(void **)&get = symbol(function);
	return get(gpu, text, TEXT);
}

static int read_name(device gpu, char *text) { return read_text("nvmlDeviceGetName", gpu, text); }
static int read_uuid(device gpu, char *text) { return read_text("nvmlDeviceGetUUID", gpu, text); }

static int read_driver(device gpu, char *text)
{
	int (*get)(char *, unsigned int);

	(void)gpu;
	*(void **)&get = symbol("nvmlSystemGetDriverVersion");
	return get(text, TEXT);
}

static int read_address(device gpu, char *text)
{
	int (*get)(device, void *), result;
	struct {
		char legacy[16];
		unsigned int numbers[5];
		char bus_id[32];
	} address;

	memset(&address, 0, sizeof address);
	*(void **)&get = symbol("nvmlDeviceGetPciInfo_v3");
	result = get(gpu, &address);
	snprintf(text, TEXT, "%s", address.bus_id);
	return result;
}

static int read_compute_mode(device gpu, char *text)
{
	static const char *const modes[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
	int (*get)(device, unsigned int *), result;
	unsigned int mode = 0;

	*(void **)&get = symbol("nvmlDeviceGetComputeMode");
	result = get(gpu, &mode);
	snprintf(text, TEXT, "%s", mode < sizeof modes / sizeof modes[0] ? modes[mode] : "[Unknown Error]");
	return result;
}

static int read_mig_mode(device gpu, char *text)
{
	int (*get)(device, unsigned int *, unsigned int *), result;
	unsigned int now = 0, pending;

	*(void **)&get = symbol("nvmlDeviceGetMigMode");
	result = get(gpu, &now, &pending);
	snprintf(text, TEXT, "%s", now ? "Enabled" : "Disabled");
	return result;
}

/* One of total, free and used, in that order. */
static int read_memory(device gpu, char *text, int which)
{
	int (*get)(device, unsigned long long *), result;
	unsigned long long bytes[3] = {0};

	*(void **)&get = symbol("nvmlDeviceGetMemoryInfo");
	result = get(gpu, bytes);
	snprintf(text, TEXT, "%llu", bytes[which] >> 20);
	return result;
}

static int read_memory_total(device gpu, char *text) { return read_memory(gpu, text, 0); }
static int read_memory_free(device gpu, char *text) { return read_memory(gpu, text, 1); }
static int read_memory_used(device gpu, char *text) { return read_memory(gpu, text, 2); }

static int read_utilization(device gpu, char *text)
{
	int (*get)(device, unsigned int *), result;
	unsigned int percent[2] = {0};

	*(void **)&get = symbol("nvmlDeviceGetUtilizationRates");
	result = get(gpu, percent);
	snprintf(text, TEXT, "%u", percent[0]);
	return result;
}

static const struct query queries[] = {{"index", NULL, NULL, read_index},
				       {"name", "gpu_name", NULL, read_name},
				       {"uuid", "gpu_uuid", NULL, read_uuid},
				       {"driver_version", NULL, NULL, read_driver},
				       {"pci.bus_id", "gpu_bus_id", NULL, read_address},
				       {"compute_mode", NULL, NULL, read_compute_mode},
				       {"mig.mode.current", NULL, NULL, read_mig_mode},
				       {"memory.total", NULL, "MiB", read_memory_total},
				       {"memory.free", NULL, "MiB", read_memory_free},
				       {"memory.used", NULL, "MiB", read_memory_used},
				       {"utilization.gpu", NULL, "%", read_utilization}};

static const struct query *find_query(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof queries / sizeof queries[0]; i++) {
		if (!strcmp(name, queries[i].name) || (queries[i].alias && !strcmp(name, queries[i].alias)))
			return &queries[i];
	}
	fprintf(stderr, "Field \"%s\" is not a valid field to query.\n", name);
	exit(INVALID_ARGUMENT);
}

static void print_value(const struct query *query, device gpu, int units)
{
	char text[TEXT] = "";
	int result = query->read(gpu, text);

	if (result == NOT_SUPPORTED) {
		printf("[N/A]");
		return;
	}
	check(result, query->name);
	printf("%s", text);
	if (query->unit && units)
		printf(" %s", query->unit);
}

static int query_gpus(char *ids, char *fields, char *format)
{
	const struct query *asked[MAX_FIELDS];
	int csv = 0, header = 1, units = 1;
	unsigned int i, j, n = 0, count;
	device gpus[MAX_TARGETS];
	char *word, *rest;

	for (word = strtok_r(format, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
		csv |= !strcmp(word, "csv");
		header &= strcmp(word, "noheader") != 0;
		units &= strcmp(word, "nounits") != 0;
	}
	if (!csv) {
		fprintf(stderr, "nvidia-smi: --query-gpu needs --format=csv, with noheader and nounits as you like\n");
		return INVALID_ARGUMENT;
	}
	for (word = strtok_r(fields, ", ", &rest); word && n < MAX_FIELDS; word = strtok_r(NULL, ", ", &rest))
		asked[n++] = find_query(word);
	initialize();
	count = find_gpus(ids, gpus);
	if (count == 0) {
		printf("No devices were found\n");
		return NOT_FOUND;
	}
	for (j = 0; header && j < n; j++)
		printf(asked[j]->unit ? "%s%s [%s]" : "%s%s", j ? ", " : "", asked[j]->name, asked[j]->unit);
	if (header)
		printf("\n");
	for (i = 0; i < count; i++) {
		for (j = 0; j < n; j++) {
			printf("%s", j ? ", " : "");
			print_value(asked[j], gpus[i], units);
		}
		printf("\n");
	}
	return 0;
}

/* nvidia-smi alone: the first lines of the real one's table, which scripts look into, and a line per GPU. */
static int summary(void)
{
	char driver[TEXT], name[TEXT], address[TEXT], used[TEXT], total[TEXT];
	int (*get_cuda)(int *), cuda;
	device gpus[MAX_TARGETS];
	unsigned int i, n;

	initialize();
	n = find_gpus(NULL, gpus);
	if (n == 0) {
		printf("No devices were found\n");
		return NOT_FOUND;
	}
	*(void **)&get_cuda = symbol("nvmlSystemGetCudaDriverVersion_v2");
	check(get_cuda(&cuda), "read the CUDA version");
	check(read_driver(NULL, driver), "read the driver's version");
	printf("+-----------------------------------------------------------------------------------------+\n"
	       "| NVIDIA-SMI %-22.22s Driver Version: %-14.14s CUDA Version: %d.%-5d |\n"
	       "+-----------------------------------------------------------------------------------------+\n",
	       driver, driver, cuda / 1000, cuda % 1000 / 10);
	for (i = 0; i < n; i++) {
		check(read_name(gpus[i], name), "read a GPU's name");
		check(read_address(gpus[i], address), "read a GPU's address");
		check(read_memory_used(gpus[i], used), "read a GPU's memory");
		check(read_memory_total(gpus[i], total), "read a GPU's memory");
		printf("| %3u  %-32.32s %-18.18s %12sMiB / %7sMiB   |\n", index_of(gpus[i]), name, address, used, total);
	}
	printf("+-----------------------------------------------------------------------------------------+\n");
	return 0;
}

/*
 * nvidia-smi --gpu-reset -i IDS. The texts of a success and of a GPU in use are the
 * real tool's (NVIDIA/NVSentinel #1690), and so is their exit status; that a GPU has
 * to be reset together with others is in its manual page, and the words are guessed.
 */
static int reset(char *ids)
{
	int (*reset_gpu)(device), result, worst = 0, used = 0;
	const char *(*text)(int);
	device gpus[MAX_TARGETS];
	char address[TEXT];
	unsigned int i, n;

	initialize();
	*(void **)&reset_gpu = symbol("nvmlSimDeviceReset");
	*(void **)&text = symbol("nvmlErrorString");
	n = find_gpus(ids, gpus);
	for (i = 0; i < n; i++) {
		read_address(gpus[i], address);
		result = reset_gpu(gpus[i]);
		if (result == 0) {
			printf("GPU %s was successfully reset.\n", address);
			continue;
		}
		if (!worst)
			printf("The following GPUs could not be reset:\n");
		worst = result;
		used += result == IN_USE;
		if (result == IN_USE)
			printf("  GPU %s: In use by another client\n", address);
		else if (result == INVALID_STATE)
			printf("  GPU %s: It must be reset in the same command as the GPUs that NVLink connects it with\n", address);
		else
			printf("  GPU %s: %s\n", address, text(result));
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
	char *ids = NULL, *fields = NULL, *format = NULL;
	int i;

	if (argc == 1)
		return summary();
	if (!strcmp(argv[1], "compute-policy"))
		return compute_policy(argc - 1, argv + 1);
	if ((!strcmp(argv[1], "-r") || !strcmp(argv[1], "--gpu-reset")) && (argc == 2 || (argc == 4 && !strcmp(argv[2], "-i"))))
		return reset(argc == 4 ? argv[3] : NULL);
	if (argc == 2 && (!strcmp(argv[1], "-L") || !strcmp(argv[1], "--list-gpus")))
		return list();
	if (argc == 2 && !strcmp(argv[1], "--version"))
		return version();
	for (i = 1; i < argc; i++) {
		if (!strncmp(argv[i], "--query-gpu=", 12))
			fields = argv[i] + 12;
		else if (!strncmp(argv[i], "--format=", 9))
			format = argv[i] + 9;
		else if (!strncmp(argv[i], "--id=", 5))
			ids = argv[i] + 5;
		else if (!strcmp(argv[i], "-i") && i + 1 < argc)
			ids = argv[++i];
		else
			break;
	}
	if (i == argc && fields && format)
		return query_gpus(ids, fields, format);
	fprintf(stderr, "nvidia-smi: this is the GPU simulator's stand-in, which knows no argument at all, -L, --version, compute-policy,\n"
			"--gpu-reset [-i IDS] and [-i IDS] --query-gpu=FIELDS --format=csv[,noheader][,nounits] only\n");
	return 1;
}
