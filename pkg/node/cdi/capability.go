package cdi

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// capsDriver is the name under which /proc/devices lists the capability devices.
const capsDriver = "nvidia-caps"

// capsDir is where containers find them.
const capsDir = "/dev/nvidia-caps"

// Partition are the edits that one MIG device adds: the device node of its GPU,
// and the two capability devices that let a process use this partition of it
// and no other.
func (e *Edits) Partition(uuid string, instance, compute int) (cdispec.ContainerEdits, error) {
	parent, err := e.GPU(uuid)
	if err != nil {
		return cdispec.ContainerEdits{}, err
	}
	minor, err := minorOf(parent, uuid, e.roots.hostDev())
	if err != nil {
		return cdispec.ContainerEdits{}, err
	}
	edits := parent
	edits.DeviceNodes = append([]*cdispec.DeviceNode{}, parent.DeviceNodes...) // the GPU's are remembered
	dir := fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d", minor, instance)
	for _, file := range []string{dir + "/access", fmt.Sprintf("%s/ci%d/access", dir, compute)} {
		node, err := e.capability(file)
		if err != nil {
			return cdispec.ContainerEdits{}, fmt.Errorf("find the capability devices of compute instance %d in GPU instance %d on %s: %w", compute, instance, uuid, err)
		}
		edits.DeviceNodes = append(edits.DeviceNodes, node)
	}
	return edits, nil
}

// minorOf is the number in the GPU's device node.
func minorOf(edits cdispec.ContainerEdits, uuid, root string) (int, error) {
	for _, node := range edits.DeviceNodes {
		if minor, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(node.Path), "nvidia")); err == nil {
			return minor, nil
		}
	}
	return 0, fmt.Errorf("GPU %s has no device node /dev/nvidia<minor> below %s: let the NVIDIA driver create it (nvidia-smi does)", uuid, root)
}

// capability returns the device node that a file of the kernel driver describes. The runtime
// needs only its numbers, unless a container has a user namespace of its own: then it binds
// the host's node. nvidia-modprobe would make that node, but this process does not have it.
func (e *Edits) capability(file string) (*cdispec.DeviceNode, error) {
	path := filepath.Join(e.roots.localProc(), file)
	minor, err := number(path, "DeviceFileMinor:", 1)
	if err != nil {
		return nil, err
	}
	major, err := e.capsMajor()
	if err != nil {
		return nil, err
	}
	node := &cdispec.DeviceNode{
		Path:        fmt.Sprintf("%s/nvidia-cap%d", capsDir, minor),
		Type:        "c",
		Major:       major,
		Minor:       minor,
		Permissions: "rw",
	}
	if mode, err := number(path, "DeviceFileMode:", 1); err == nil {
		node.FileMode = ptr.To(os.FileMode(mode))
		e.makeCapability(path, node)
	}
	return node, nil
}

func (e *Edits) capsMajor() (int64, error) {
	return number(filepath.Join(e.roots.localProc(), "devices"), capsDriver, 0)
}

// makeCapability makes the node on the host, unless the driver's settings forbid it.
func (e *Edits) makeCapability(file string, node *cdispec.DeviceNode) {
	if modify, err := number(file, "DeviceFileModify:", 1); err != nil || modify == 0 {
		return
	}
	if err := e.roots.Machine.Make(node.Path, node.Major, node.Minor, *node.FileMode); err != nil {
		e.log.Error(err, "Pods with hostUsers: false cannot use this MIG partition: let the plugin write to /dev/nvidia-caps of the host, as the chart does")
		return
	}
	e.link(node)
}

// number reads the number in a column of the line that has the word.
func number(path, word string, column int) (int64, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("the NVIDIA kernel driver has no file for it: %w: check that the driver's version supports MIG and that its /proc is mounted here", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 2 || fields[1-column] != word {
			continue
		}
		value, err := strconv.ParseInt(fields[column], 10, 32)
		if err != nil {
			return 0, fmt.Errorf("%s has the line %q, where a number was expected: %w", path, lines.Text(), err)
		}
		return value, nil
	}
	return 0, fmt.Errorf("%s has no line with %q: load the NVIDIA kernel driver with MIG support", path, word)
}
