#define _GNU_SOURCE
#include "sim.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * nvcdi mounts this socket of the driver root into every container that gets a
 * GPU, so the daemon listens there for the library inside the container.
 */
#define CONTAINER_SOCKET "/run/nvidia-persistenced/socket"

static int connect_address(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd;

	if (strlen(path) >= sizeof address.sun_path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
		if (errno == EINTR)
			continue;
		close(fd);
		return -1;
	}
	return fd;
}

/*
 * Reaches the socket `name` in the directory `dir`, which may be deeper than a
 * socket address has room for: then by the directory's descriptor.
 */
static int connect_in(const char *dir, const char *name)
{
	char path[PATH_MAX];
	int directory, fd;

	if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
		return -1;
	fd = connect_address(path);
	if (fd >= 0 || errno != ENAMETOOLONG)
		return fd;
	directory = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		return -1;
	snprintf(path, sizeof path, "/proc/self/fd/%d/%s", directory, name);
	fd = connect_address(path);
	close(directory);
	return fd;
}

static int connect_path(const char *path)
{
	char dir[PATH_MAX];
	const char *slash = strrchr(path, '/');

	if (!slash)
		return connect_in(".", path);
	if (slash == path)
		return connect_in("/", slash + 1);
	if ((size_t)(slash - path) >= sizeof dir)
		return -1;
	memcpy(dir, path, slash - path);
	dir[slash - path] = '\0';
	return connect_in(dir, slash + 1);
}

/* The socket beside the library's own file, links resolved. */
static int connect_beside(void)
{
	char file[PATH_MAX], *slash;
	Dl_info self;

	if (dladdr((void *)(uintptr_t)sim_connect, &self) == 0 || !realpath(self.dli_fname, file))
		return -1;
	slash = strrchr(file, '/');
	if (!slash)
		return -1;
	*slash = '\0';
	return connect_in(file, "nvml-sim.sock");
}

/* A driver's library is named libnvidia-ml.so.580.95.05; anything with a dot is a version. */
void sim_library_version(char *version, size_t size)
{
	static const char name[] = "/libnvidia-ml.so.";
	char file[PATH_MAX], *found;
	Dl_info self;

	memset(version, 0, size);
	if (dladdr((void *)(uintptr_t)sim_connect, &self) == 0 || !realpath(self.dli_fname, file))
		return;
	found = strstr(file, name);
	if (found && strchr(found += strlen(name), '.'))
		snprintf(version, size, "%s", found);
}

int sim_connect(void)
{
	const char *path = getenv("NVML_SIM_SOCKET");
	int fd;

	if (path && *path)
		return connect_path(path);
	fd = connect_beside();
	return fd >= 0 ? fd : connect_path(CONTAINER_SOCKET);
}

static bool character_device(int dir, const char *name)
{
	struct stat status;

	return fstatat(dir, name, &status, 0) == 0 && S_ISCHR(status.st_mode);
}

/*
 * Appends the minors of the devices that are named `prefix` and a number. The
 * directory is closed.
 */
static int numbered(DIR *dir, const char *prefix, uint32_t *minors, int max)
{
	struct dirent *entry;
	const char *number;
	unsigned int minor;
	int count = 0, used;

	while ((entry = readdir(dir)) && count < max) {
		if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
			continue;
		number = entry->d_name + strlen(prefix);
		used = 0;
		if (sscanf(number, "%u%n", &minor, &used) != 1 || number[used] != '\0')
			continue;
		if (character_device(dirfd(dir), entry->d_name))
			minors[count++] = minor;
	}
	closedir(dir);
	return count;
}

const char *sim_device_directory(void)
{
	const char *root = getenv("NVML_SIM_DEV");

	return root && *root ? root : "/dev";
}

/*
 * The rule is the real library's: a process that has a /dev/nvidiactl sees the
 * GPUs whose /dev/nvidiaN it has. Without one, as on the simulated machine
 * itself, whose devices live under the driver root, it sees them all. One that
 * this process made restricts nothing.
 */
int sim_visible_minors(uint32_t *minors, int max)
{
	DIR *dir = opendir(sim_device_directory());

	if (!dir)
		return -1;
	if (sim_made_control() || !character_device(dirfd(dir), "nvidiactl")) {
		closedir(dir);
		return -1;
	}
	return numbered(dir, "nvidia", minors, max);
}

int sim_visible_capabilities(uint32_t *minors, int max)
{
	char path[PATH_MAX];
	DIR *dir;

	if (snprintf(path, sizeof path, "%s/nvidia-caps", sim_device_directory()) >= (int)sizeof path)
		return 0;
	dir = opendir(path);
	return dir ? numbered(dir, "nvidia-cap", minors, max) : 0;
}
