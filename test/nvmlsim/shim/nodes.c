#define _GNU_SOURCE
#include "sim.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/*
 * As root, the real library makes the device nodes that it needs and its process
 * lacks, in the /dev that this process has. Whether the machine is one where that
 * happens, and which nodes it is by now, the daemon says.
 */
enum { MAX_NODES_TEXT = 16 * 1024 };

int nvmlSimDeviceNodes(void *text, uint32_t size);

static atomic_bool wanted, made_control;

bool sim_made_control(void)
{
	return made_control;
}

static void make_node(char *line)
{
	char path[PATH_MAX], name[64], *slash;
	unsigned int major, minor, mode;

	if (sscanf(line, "%63s %u %u %o", name, &major, &minor, &mode) != 4 ||
	    snprintf(path, sizeof path, "%s/%s", sim_device_directory(), name) >= (int)sizeof path)
		return;
	slash = strrchr(path, '/');
	*slash = '\0';
	mkdir(path, 0755);
	*slash = '/';
	if (mknod(path, S_IFCHR | mode, makedev(major, minor)) != 0)
		return; /* it is there, or this root may make none: then it has none */
	chmod(path, mode);
	if (strcmp(name, "nvidiactl") == 0)
		made_control = true;
}

void sim_make_nodes(bool first)
{
	char *text, *line, *rest;

	if (geteuid() != 0 || !(first || wanted) || !(text = malloc(MAX_NODES_TEXT)))
		return;
	wanted = nvmlSimDeviceNodes(text, MAX_NODES_TEXT) == NVML_SUCCESS;
	if (wanted)
		for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
			make_node(line);
	free(text);
}

int sim_open(const struct function *f, const uint64_t *v)
{
	int result = sim_call(f, v);

	if (result == NVML_SUCCESS)
		sim_make_nodes(false);
	return result;
}
