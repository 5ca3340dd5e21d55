package driverroot

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// Distances in the ACPI SLIT: local, and to every other node.
const (
	localDistance  = 10
	remoteDistance = 21
)

// numa shows the NUMA nodes with their CPUs and distances.
func (t *Tree) numa(file model.File) {
	const dir = "sys/devices/system/node"
	var ids []string
	for _, node := range file.NUMANodes {
		ids = append(ids, fmt.Sprint(node.ID))
		name := fmt.Sprintf("node%d", node.ID)
		var distances []string
		for _, other := range file.NUMANodes {
			distance := remoteDistance
			if other.ID == node.ID {
				distance = localDistance
			}
			distances = append(distances, fmt.Sprint(distance))
		}
		t.file(path.Join(dir, name, "distance"), strings.Join(distances, " ")+"\n")
		t.file(path.Join(dir, name, "cpulist"), node.CPUs+"\n")
		cpus, err := model.ParseCPUList(node.CPUs)
		t.fail(err)
		for _, cpu := range cpus {
			t.link(fmt.Sprintf("sys/devices/system/cpu/cpu%d/%s", cpu, name), "/"+path.Join(dir, name))
		}
	}
	for _, name := range []string{"online", "possible", "has_cpu"} {
		t.file(path.Join(dir, name), strings.Join(ids, ",")+"\n")
	}
}

func cpusOf(file model.File, numaNode int) string {
	for _, node := range file.NUMANodes {
		if node.ID == numaNode {
			return node.CPUs
		}
	}
	return ""
}

func (t *Tree) has(name string) bool {
	_, err := os.Lstat(filepath.Join(t.root, name))
	return err == nil
}
