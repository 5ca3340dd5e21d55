/*
 * The exported symbols of libnvidia-ml.so.1. Each takes its arguments as plain
 * registers hold them: handles, enums and pointers all are integers to the
 * calling convention, so the table needs no declaration of NVML's own types.
 */
#include "sim.h"

#define P(argument) ((uint64_t)(uintptr_t)(argument))

#define FORWARD_BY(call, name, parameters, arguments, ...)                          \
	SIM_API int name parameters;                                                \
	SIM_API int name parameters                                                 \
	{                                                                           \
		static const struct function f = {#name, __VA_ARGS__};              \
		const values v = LIST arguments;                                        \
		return call(&f, v);                                                 \
	}
#define LIST(...) {__VA_ARGS__}

#define FORWARD(...) FORWARD_BY(sim_call, __VA_ARGS__)
#define FORWARD_INIT(...) FORWARD_BY(sim_init, __VA_ARGS__)
#define FORWARD_OPEN(...) FORWARD_BY(sim_open, __VA_ARGS__)
#define FORWARD_SHUTDOWN(...) FORWARD_BY(sim_shutdown, __VA_ARGS__)

/*
 * Functions that the simulator does not model. The daemon refuses them, so that
 * errors and latencies can be injected into them and a lost GPU is told first.
 */
#define REFUSED(name) FORWARD(name, (void), (0), 0, {{0, 0, 0}})
#define REFUSED_OF_DEVICE(name) FORWARD(name, (void *a0), (P(a0)), 1, {{ARG_HANDLE, COUNT_ONE, 0}})

#include "zz_generated.functions.inc"

SIM_API const char *nvmlErrorString(int result);

SIM_API const char *nvmlErrorString(int result)
{
	static const char *const texts[] = {
		[0] = "Success",
		[1] = "Uninitialized",
		[2] = "Invalid Argument",
		[3] = "Not Supported",
		[4] = "Insufficient Permissions",
		[5] = "Already Initialized",
		[6] = "Not Found",
		[7] = "Insufficient Size",
		[8] = "Insufficient External Power",
		[9] = "Driver Not Loaded",
		[10] = "Timeout",
		[11] = "Interrupt Request Issue",
		[12] = "NVML Shared Library Not Found",
		[13] = "Function Not Found",
		[14] = "Corrupted infoROM",
		[15] = "GPU is lost",
		[16] = "GPU requires reset",
		[17] = "GPU access blocked by the operating system",
		[18] = "Driver/library version mismatch",
		[19] = "In use by another client",
		[20] = "Insufficient Memory",
		[21] = "No data",
		[22] = "vGPU not available with ECC enabled",
		[23] = "Insufficient Resources",
		[24] = "Frequency not supported",
		[25] = "Argument version mismatch",
		[26] = "Deprecated",
		[27] = "Not ready",
		[28] = "GPU not found",
		[29] = "Invalid state",
		[30] = "Reset type not supported",
	};

	if (result >= 0 && (size_t)result < sizeof texts / sizeof texts[0])
		return texts[result];
	return "Unknown Error";
}
