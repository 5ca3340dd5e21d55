#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * A process has one session with the daemon: its reference count of nvmlInit,
 * its handles and its event sets. The session has as many connections as there
 * have been calls at one time, so a thread that waits for an event keeps no
 * other thread waiting; the daemon ends it when the last connection goes.
 *
 * A session is lost when the daemon goes away. From then on every call answers
 * NVML_ERROR_UNKNOWN until nvmlInit opens a new one, as real clients must do
 * when the driver is reloaded.
 */
enum session_state { SESSION_NONE, SESSION_OPEN, SESSION_LOST };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum session_state state;
static uint8_t session_id[SESSION_ID_SIZE];
static unsigned int generation; /* counts sessions; an older connection is stale */
static unsigned int inits;      /* successful nvmlInit calls not shut down yet */
static struct connection *connections;
/* As it was when the library was loaded: its file may be replaced meanwhile. */
static char library_version[LIBRARY_VERSION_SIZE];

enum { MAX_VISIBLE = 256, MAX_CAPABILITIES = 8192, ALL_VISIBLE = 0xffff };

struct hello {
	char magic[8];
	uint8_t version;
	uint8_t opens; /* 1: a new session; 0: one more connection to it */
	uint16_t visible;
	uint32_t pid;
	uint8_t session[SESSION_ID_SIZE];
	uint32_t capabilities;
	char library[LIBRARY_VERSION_SIZE];
	uint32_t minors[MAX_VISIBLE + MAX_CAPABILITIES]; /* of GPUs, then of capabilities */
};

static bool send_all(int fd, const void *data, size_t size)
{
	const uint8_t *at = data;
	ssize_t n;

	while (size > 0) {
		n = send(fd, at, size, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

static bool receive_all(int fd, void *data, size_t size)
{
	uint8_t *at = data;
	ssize_t n;

	while (size > 0) {
		n = recv(fd, at, size, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

static bool send_frame(int fd, const void *data, uint32_t size)
{
	return send_all(fd, &size, sizeof size) && send_all(fd, data, size);
}

/* Returns the frame's size, 0 when the daemon is gone or breaks the protocol. */
static size_t receive_frame(int fd, void *data, size_t max)
{
	uint32_t size;

	if (!receive_all(fd, &size, sizeof size) || size == 0 || size > max)
		return 0;
	return receive_all(fd, data, size) ? size : 0;
}

/* Introduces a new connection to the daemon; an NVML return code. */
static int introduce(int fd, bool opens)
{
	struct hello hello = {.magic = "NVMLSIM", .version = PROTOCOL_VERSION, .opens = opens,
			      .visible = ALL_VISIBLE, .pid = (uint32_t)getpid()};
	size_t size = offsetof(struct hello, minors);
	uint32_t answer;
	int visible;

	memcpy(hello.session, session_id, sizeof session_id);
	memcpy(hello.library, library_version, sizeof library_version);
	visible = sim_visible_minors(hello.minors, MAX_VISIBLE);
	if (visible >= 0) {
		hello.visible = (uint16_t)visible;
		hello.capabilities = (uint32_t)sim_visible_capabilities(hello.minors + visible, MAX_CAPABILITIES);
		size += sizeof hello.minors[0] * ((size_t)visible + hello.capabilities);
	}
	if (!send_frame(fd, &hello, (uint32_t)size) ||
	    receive_frame(fd, &answer, sizeof answer) != sizeof answer)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	return (int)answer;
}

static struct connection *open_connection(bool opens, int *result)
{
	struct connection *c = malloc(sizeof *c);

	*result = NVML_ERROR_DRIVER_NOT_LOADED;
	if (!c)
		return NULL;
	c->fd = sim_connect();
	if (c->fd >= 0)
		*result = introduce(c->fd, opens);
	if (*result != NVML_SUCCESS) {
		if (c->fd >= 0)
			close(c->fd);
		free(c);
		return NULL;
	}
	c->generation = generation;
	c->busy = true;
	c->next = connections;
	connections = c;
	return c;
}

static void close_connection(struct connection *c)
{
	struct connection **at = &connections;

	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	close(c->fd);
	free(c);
}

static void close_idle(void)
{
	struct connection *c = connections, *next;

	for (; c; c = next) {
		next = c->next;
		if (!c->busy)
			close_connection(c);
	}
}

static void lose_session(void)
{
	state = SESSION_LOST;
	close_idle();
}

static struct connection *acquire(int *result)
{
	struct connection *c;

	for (c = connections; c; c = c->next) {
		if (!c->busy && c->generation == generation) {
			c->busy = true;
			return c;
		}
	}
	c = open_connection(false, result);
	if (!c) {
		lose_session();
		*result = NVML_ERROR_UNKNOWN;
	}
	return c;
}

static void release(struct connection *c, bool usable)
{
	if (!usable && c->generation == generation)
		lose_session();
	c->busy = false;
	if (!usable || c->generation != generation || state != SESSION_OPEN)
		close_connection(c);
}

/* One request and its reply. False if the connection is of no more use. */
static bool exchange(struct connection *c, const struct function *f, const uint64_t *v, int *result)
{
	size_t size = sim_encode(f, v, c->frame);

	if (size == 0) {
		*result = NVML_ERROR_INVALID_ARGUMENT;
		return true;
	}
	*result = NVML_ERROR_UNKNOWN;
	if (!send_frame(c->fd, c->frame, (uint32_t)size))
		return false;
	size = receive_frame(c->fd, c->frame, sizeof c->frame);
	if (size == 0)
		return false;
	if (sim_decode(f, v, c->frame, size, result))
		return true;
	*result = NVML_ERROR_UNKNOWN;
	return false;
}

int sim_call(const struct function *f, const uint64_t *v)
{
	struct connection *c = NULL;
	int result = NVML_ERROR_UNINITIALIZED;
	bool usable;

	pthread_mutex_lock(&lock);
	if (state == SESSION_LOST)
		result = NVML_ERROR_UNKNOWN;
	if (state == SESSION_OPEN)
		c = acquire(&result);
	pthread_mutex_unlock(&lock);
	if (!c)
		return result;

	usable = exchange(c, f, v, &result);

	pthread_mutex_lock(&lock);
	release(c, usable);
	pthread_mutex_unlock(&lock);
	return result;
}

/* Called with the lock held; leaves an open session or says why there is none. */
static int open_session(void)
{
	struct connection *c;
	int result;

	if (getrandom(session_id, sizeof session_id, 0) != sizeof session_id)
		return NVML_ERROR_UNKNOWN;
	generation++;
	c = open_connection(true, &result);
	if (!c)
		return result;
	inits = 0;
	state = SESSION_OPEN;
	c->busy = false;
	return NVML_SUCCESS;
}

static int ensure_session(void)
{
	int result = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (state != SESSION_OPEN)
		result = open_session();
	pthread_mutex_unlock(&lock);
	return result;
}

static bool session_lost(void)
{
	bool lost;

	pthread_mutex_lock(&lock);
	lost = state == SESSION_LOST;
	pthread_mutex_unlock(&lock);
	return lost;
}

int sim_init(const struct function *f, const uint64_t *v)
{
	int result = ensure_session();

	if (result != NVML_SUCCESS)
		return result;
	result = sim_call(f, v);
	/* The daemon may have been restarted between two calls. */
	if (result == NVML_ERROR_UNKNOWN && session_lost()) {
		result = ensure_session();
		if (result == NVML_SUCCESS)
			result = sim_call(f, v);
	}
	if (result == NVML_SUCCESS) {
		pthread_mutex_lock(&lock);
		inits++;
		pthread_mutex_unlock(&lock);
		sim_make_nodes(true);
	}
	return result;
}

int sim_shutdown(const struct function *f, const uint64_t *v)
{
	int result = sim_call(f, v);

	pthread_mutex_lock(&lock);
	if (state == SESSION_LOST) {
		result = inits > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
		if (inits <= 1)
			state = SESSION_NONE;
	}
	if (result == NVML_SUCCESS && inits > 0)
		inits--;
	pthread_mutex_unlock(&lock);
	return result;
}

/*
 * A forked child shares its parent's sockets, and two readers on one stream
 * would steal each other's replies: the child closes them all and opens its
 * own to the same session, in which its parent's handles stay valid.
 */
static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
	while (connections)
		close_connection(connections);
	pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void loaded(void)
{
	sim_library_version(library_version, sizeof library_version);
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
