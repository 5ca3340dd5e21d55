// Package conformance checks a cluster with Mica against what Kubernetes AI Conformance asks of accelerators. The tests
// (build tag conformance) need a cluster; `make conformance` runs them and writes the report that a platform attaches.
// They are written from the requirements, the KARs of kubernetes-sigs/ai-conformance, and share no code with its suite.
// Files without the tag judge what was read from the cluster, and need none.
package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// sight holds the GPUs that a container sees, as probeScript prints them.
type sight struct {
	// devices are the device nodes of GPUs, /dev/nvidia0 and so on.
	devices []string
	// gpus are the UUIDs that nvidia-smi lists.
	gpus []string
	// traces are whatever else there is of the driver: control devices and nvidia-smi.
	traces []string
	// driver and cuda are the versions that nvidia-smi prints, module that of the kernel module; empty if it was not seen.
	driver, cuda, module string
}

var (
	deviceLine = regexp.MustCompile(`(?m)^device (/dev/nvidia\S*)$`)
	gpuNode    = regexp.MustCompile(`^/dev/nvidia\d+$`)
	queryLine  = regexp.MustCompile(`(?m)^(GPU-[0-9a-f-]+), (\d+(?:\.\d+)+)$`)
	// Newer drivers tell the version of the user mode driver from that of the kernel mode driver.
	cudaWords   = regexp.MustCompile(`CUDA (?:UMD )?Version: +(\d+\.\d+)`)
	moduleWords = regexp.MustCompile(`(?m)^module NVRM version:.*?\s(\d+(?:\.\d+)+)\s`)
)

// readSight reads the output of probeScript; complete reports whether the script has printed all.
func readSight(log string) (seen sight, complete bool) {
	for _, match := range deviceLine.FindAllStringSubmatch(log, -1) {
		if gpuNode.MatchString(match[1]) {
			seen.devices = append(seen.devices, match[1])
		} else {
			seen.traces = append(seen.traces, match[1])
		}
	}
	for _, match := range queryLine.FindAllStringSubmatch(log, -1) {
		seen.gpus, seen.driver = append(seen.gpus, match[1]), match[2]
	}
	if !strings.Contains(log, "no nvidia-smi\n") {
		seen.traces = append(seen.traces, "nvidia-smi")
	}
	if match := cudaWords.FindStringSubmatch(log); match != nil {
		seen.cuda = match[1]
	}
	if match := moduleWords.FindStringSubmatch(log); match != nil {
		seen.module = match[1]
	}
	slices.Sort(seen.devices)
	slices.Sort(seen.gpus)
	return seen, strings.HasSuffix(log, "\nprobed\n")
}

// expect is nil if the container sees exactly the GPUs with the UUIDs, and, without any, nothing of the driver.
func (s sight) expect(uuids ...string) error {
	slices.Sort(uuids)
	switch {
	case len(s.devices) != len(uuids) || !slices.Equal(s.gpus, uuids):
		return fmt.Errorf("it has the device nodes %q and nvidia-smi lists %q, want a device node per GPU of %q", s.devices, s.gpus, uuids)
	case len(uuids) == 0 && len(s.traces) > 0:
		return fmt.Errorf("it has no claim, and yet %q", s.traces)
	}
	return nil
}

// sameVersion compares an attribute of a ResourceSlice, a semantic version such as 580.95.5, with a version as the driver
// writes it, such as 580.95.05 or 13.0. What the latter leaves out is zero. An absent version equals no other.
func sameVersion(attribute, printed string) bool {
	if attribute == "" || printed == "" {
		return false
	}
	number := func(parts []string, i int) string {
		if i >= len(parts) {
			return "0"
		}
		if value, err := strconv.Atoi(parts[i]); err == nil {
			return strconv.Itoa(value)
		}
		return parts[i]
	}
	left, right := strings.Split(attribute, "."), strings.Split(printed, ".")
	for i := range max(len(left), len(right)) {
		if number(left, i) != number(right, i) {
			return false
		}
	}
	return true
}

// The series that each GPU has, whether it is held or idle.
const (
	utilizationSeries = "mica_gpu_utilization_ratio"
	memorySeries      = "mica_gpu_memory_used_bytes"
)

// gpusWith are the UUIDs that have a series of that name. The label is spelled as by DCGM's exporter, which others know.
func gpusWith(families map[string]*dto.MetricFamily, name string) map[string]bool {
	found := map[string]bool{}
	for _, metric := range families[name].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "UUID" {
				found[label.GetValue()] = true
			}
		}
	}
	return found
}
