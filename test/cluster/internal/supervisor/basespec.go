package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// writeBaseSpec writes the runtime specification from which containerd makes that of each container, and returns its
// path, which is empty if the driver is not simulated. It is containerd's own (`ctr oci spec`) with a hook: the kernel
// module of the real driver shows /proc/driver/nvidia in every container, with or without a GPU, since /proc/driver is of no
// namespace. nvcdi's specifications have nothing of it but params, which a hook of theirs hides. runc mounts nothing
// into /proc itself, and so a hook does. A machine that has no /proc/driver, and a driver without a module, change nothing.
func (s *Supervisor) writeBaseSpec() (string, error) {
	if s.spec.SimNode == "" {
		return "", nil
	}
	out, err := exec.Command(s.spec.Binaries["ctr"], "oci", "spec").Output()
	if err != nil {
		return "", fmt.Errorf("asking ctr for the runtime specification: %w", err)
	}
	var spec map[string]any
	if err := json.Unmarshal(out, &spec); err != nil {
		return "", fmt.Errorf("reading the runtime specification: %w", err)
	}
	// createContainer hooks run in the container's mount namespace, in the directory that will be its root
	// (runc, libcontainer/rootfs_linux.go, prepareRootfs).
	const script = `[ ! -d "$0/nvidia" ] || [ ! -d proc/driver ] || mount --options bind,ro "$0" proc/driver || :`
	spec["hooks"] = map[string]any{"createContainer": []any{map[string]any{
		"path": "/bin/sh", "args": []string{"sh", "-c", script, filepath.Join(s.spec.Dir.Driver(), "proc/driver")}, "env": []string{"PATH=" + systemPath},
	}}}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encoding the runtime specification: %w", err)
	}
	path := filepath.Join(s.spec.Dir.Config(), "base-spec.json")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return "", fmt.Errorf("writing the cluster's configuration: %w", err)
	}
	return path, nil
}
