package mps

import (
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Where a client finds its daemon, inside of its container.
const (
	clientPipe = "/tmp/nvidia-mps" // the default of CUDA
	clientShm  = "/dev/shm"
)

// Edits are what a container needs to be a client of a daemon. Who uses two
// daemons in one container is the client of one of them.
func (d *Directory) Edits(id string, limits Limits) cdispec.ContainerEdits {
	edits := cdispec.ContainerEdits{
		Env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + clientPipe},
		Mounts: []*cdispec.Mount{
			// Clients connect to what is there. Where they could make a file, root of a
			// container could put a link where the daemon, as root of the node, makes its
			// lock or another of its files.
			{HostPath: d.root.place(id).Pipe(), ContainerPath: clientPipe, Options: []string{"ro", "bind", "nosuid", "nodev", "noexec"}},
			// Server and clients hand each other memory by name.
			{HostPath: d.root.shm(), ContainerPath: clientShm, Options: []string{"rw", "bind", "nosuid", "nodev", "noexec"}},
		},
	}
	if limit := limits.MemoryBytes / mebibyte; limit > 0 {
		edits.Env = append(edits.Env, fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", limit))
	}
	if limits.Cores > 0 {
		edits.Env = append(edits.Env, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", limits.Cores))
	}
	return edits
}
