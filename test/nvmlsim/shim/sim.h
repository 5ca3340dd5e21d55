/*
 * The shared declarations of the NVML shim: how a function's arguments are
 * described, and the layers that carry a call to the daemon.
 *
 *   nvml.c        the exported symbols, one line each in the generated table
 *   marshal.c     arguments to request bytes, reply bytes to arguments
 *   connection.c  sockets, the session, threads and forks
 *   nodes.c       device nodes that the process makes
 *
 * The wire format is documented in ../wire/doc.go; PROTOCOL_VERSION changes
 * with it.
 */
#ifndef MICA_NVML_SIM_H
#define MICA_NVML_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_API __attribute__((visibility("default")))

enum {
	PROTOCOL_VERSION = 4,
	MAX_ARGS = 6,
	MAX_FRAME = 64 * 1024,
	MAX_ROOM = MAX_FRAME / 2, /* of one array to write */
	SESSION_ID_SIZE = 16,
	LIBRARY_VERSION_SIZE = 32,
};

/* The return codes the shim itself can give; the daemon gives the others. */
enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_UNKNOWN = 999,
};

/* The values are part of the wire format. */
enum arg_kind {
	ARG_HANDLE = 1, /* an opaque handle, by value */
	ARG_U32 = 2,
	ARG_U64 = 3,
	ARG_STRING = 4,    /* a NUL terminated string that the caller owns */
	ARG_IN = 5,        /* memory that is read */
	ARG_OUT = 6,       /* memory that is written */
	ARG_INOUT = 7,     /* memory that is read and written */
	ARG_VERSIONED = 8, /* ARG_INOUT whose first word holds its version and size */
	ARG_TAILED = 9,    /* ARG_INOUT whose second word counts the array at its end */
};

/* How many elements a pointer argument has: one, any, or argument n's value. */
#define COUNT_ONE 0
#define COUNT_ANY 255
#define COUNT_ARG(n) ((n) + 1)
/* A tailed struct is one; here is the size of an element of its array instead. */
#define COUNT_TAIL(size) (size)

struct arg {
	uint8_t kind;
	uint8_t count;
	uint16_t size; /* of one element; the largest version's if versioned */
};

struct function {
	const char *name;
	uint8_t nargs;
	struct arg args[MAX_ARGS];
};

/* The argument values, pointers widened, in the order of the C prototype. */
typedef uint64_t values[MAX_ARGS];

struct connection {
	struct connection *next; /* in the list of all connections */
	int fd;
	unsigned int generation;
	bool busy;
	uint8_t frame[MAX_FRAME];
};

/* marshal.c */

/* Writes the request into frame; 0 if the arguments do not fit. */
size_t sim_encode(const struct function *f, const uint64_t *v, uint8_t *frame);
/* Copies the reply into the caller's memory; false if it is malformed. */
bool sim_decode(const struct function *f, const uint64_t *v,
		const uint8_t *frame, size_t size, int *result);

/* connection.c */

/* Carries out one call in the session. */
int sim_call(const struct function *f, const uint64_t *v);
/* As sim_call, but opens a session first, or a new one if the old is lost. */
int sim_init(const struct function *f, const uint64_t *v);
/* As sim_call, but succeeds when there is no daemon left to tell. */
int sim_shutdown(const struct function *f, const uint64_t *v);

/* nodes.c */

/* As sim_call, for functions that open the device nodes of a GPU or MIG device. */
int sim_open(const struct function *f, const uint64_t *v);
/* Makes the device nodes that the session needs; first says that it is a new one. */
void sim_make_nodes(bool first);
/* Reports whether this process made the node that restricts what it sees. */
bool sim_made_control(void);

/* address.c */

/* Connects to the daemon; -1 if none answers at any of the known places. */
int sim_connect(void);
/*
 * Lists the minor numbers of the GPUs that this process may use. Returns how
 * many, at most max, or -1 if it may use all of the machine's.
 */
int sim_visible_minors(uint32_t *minors, int max);
/* Writes the version that the library's file is named for, links resolved; "" if for none. */
void sim_library_version(char *version, size_t size);
/* The directory of the device nodes: /dev, but in tests. */
const char *sim_device_directory(void);
/* Lists the minor numbers of the capability devices that this process has. */
int sim_visible_capabilities(uint32_t *minors, int max);

#endif
