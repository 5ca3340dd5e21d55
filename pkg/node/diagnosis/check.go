package diagnosis

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/slice"
)

// checkPrivileges checks what the driver requires of a process that opens its control device
// as an administrator.
func checkPrivileges(r *Report, own Privileges) {
	switch {
	case own.User != 0:
		r.add("privileges", Failed, fmt.Sprintf("this process runs as user %d: run it as root, as the chart's container does", own.User))
	case !own.SysAdmin:
		r.add("privileges", Warning, "this process lacks the capability SYS_ADMIN, and without it the driver may refuse MIG: run it in the plugin's container, which is privileged")
	default:
		r.add("privileges", OK, "root, with the capability SYS_ADMIN")
	}
}

func checkDirectories(r *Report, directories []string) {
	status, findings := OK, []string{}
	for _, directory := range directories {
		switch err := unix.Access(directory, unix.W_OK); {
		case errors.Is(err, fs.ErrNotExist):
			status = status.worse(Warning)
			findings = append(findings, directory+" does not exist: run this where the plugin runs, or set the flags that name its directories")
		case err != nil:
			status = Failed
			findings = append(findings, fmt.Sprintf("%s cannot be written (%v): mount it writable", directory, err))
		default:
			findings = append(findings, directory+" can be written")
		}
	}
	r.add("directories", status, findings...)
}

// checkContainers only warns: a machine may have no kubelet.
func checkContainers(ctx context.Context, r *Report, containers Containers) {
	if containers == nil {
		return
	}
	uses, err := containers.Uses(ctx)
	if err != nil {
		r.add("kubelet", Warning, err.Error()+": the plugin offers no GPU until it knows; mount kubelet's pod-resources directory")
		return
	}
	r.add("kubelet", OK, fmt.Sprintf("it lists %d devices of device plugins", len(uses)))
}

func checkGPUs(r *Report, node gpu.Node, unreadable []error) {
	var products counted
	for _, g := range node.GPUs {
		products.add(g.ProductName)
	}
	status, findings := OK, []string{products.String()}
	if len(node.GPUs) == 0 {
		status, findings = Failed, []string{"the driver has no usable GPU: look at the kernel's log for messages of NVRM"}
	}
	for _, err := range unreadable {
		status = Failed
		findings = append(findings, fmt.Sprintf("a GPU cannot be read and would not be offered: %v", err))
	}
	r.add("GPUs", status, findings...)
}

// checkDevices reports what a node without a GPUPolicy would publish.
func checkDevices(r *Report, node gpu.Node) {
	shapes := gpu.Shapes(node.GPUs, gpu.ByDefault)
	var types counted
	for _, shape := range shapes {
		types.add(shape.Type())
	}
	status, findings := OK, []string{fmt.Sprintf("by type: %s; ResourceSlices: %d; as without a GPUPolicy (`kubelet-plugin discover` shows them)", types.String(), len(slice.Pool(node, shapes, nil).Slices))}
	for _, g := range node.GPUs {
		if !slices.ContainsFunc(shapes, func(s gpu.Shape) bool { return s.Physical().UUID == g.UUID }) {
			status = Warning
			findings = append(findings, fmt.Sprintf("GPU %d would not be offered in any way: look at its MIG instances and its MIG mode (nvidia-smi -q -d MIG)", g.Index))
		}
	}
	r.add("devices", status, findings...)
}

// checkCatalogue compares NVML's profiles and placements with the catalogue, which predicts
// nodes that do not exist yet.
func checkCatalogue(r *Report, node gpu.Node) {
	status, findings := OK, []string{}
	var same counted
	for _, g := range node.GPUs {
		board, known := catalog.BoardByProductName(g.ProductName)
		differences := catalog.Differences(g.ProductName, g.Profiles)
		switch {
		case !known:
			status = Warning
			findings = append(findings, fmt.Sprintf("GPU %d, a %s, is not in the catalogue, so the controller cannot predict nodes like this one: send this report with the output of nvidia-smi mig -lgip and -lgipp", g.Index, g.ProductName))
		case board.MIG != nil && len(g.Profiles) == 0:
			findings = append(findings, fmt.Sprintf("GPU %d lists no MIG profiles while MIG is disabled, as old drivers do", g.Index))
		case len(differences) > 0:
			status = Warning
			for _, difference := range differences {
				findings = append(findings, fmt.Sprintf("GPU %d, a %s: %s", g.Index, g.ProductName, difference))
			}
		default:
			same.add(board.Name)
		}
	}
	if len(same.order) > 0 {
		findings = append([]string{"as predicted: " + same.String()}, findings...)
	}
	r.add("catalogue", status, findings...)
}

// checkFabric checks NVLink between GPUs, with or without a fabric.
func checkFabric(r *Report, node gpu.Node) {
	var groups counted
	var waiting []string
	for _, g := range node.GPUs {
		if g.NVLinkGroup != nil {
			groups.add(fmt.Sprintf("GPUs reach each other over NVLink (group %d)", *g.NVLinkGroup))
		}
		if g.Fabric != gpu.FabricReady {
			waiting = append(waiting, fmt.Sprintf("GPU %d waits for the fabric manager (%s), and CUDA does not start on it: look at the service nvidia-fabricmanager", g.Index, g.Fabric))
		}
	}
	switch {
	case len(waiting) > 0:
		r.add("fabric", Failed, waiting...)
	case len(groups.order) == 0:
		r.add("fabric", Skipped, "no GPU has an active NVLink")
	default:
		r.add("fabric", OK, groups.String())
	}
}

// checkHealth lists the fields that the plugin judges GPUs by. Without a recovery action the
// table of XIDs decides; without the others worn memory is not found.
func checkHealth(r *Report, node gpu.Node, gpus GPUs) {
	status := OK
	var findings []string
	var answered, unsupported counted
	for _, g := range node.GPUs {
		fields, err := gpus.HealthFields(g.UUID)
		if err != nil {
			status = Failed
			findings = append(findings, fmt.Sprintf("GPU %d: %v: look at the kernel's log for messages of NVRM", g.Index, err))
			continue
		}
		for _, field := range fields {
			switch {
			case field.Err == nil:
				answered.add(field.Field)
			case errors.Is(field.Err, nvml.ErrNotSupported):
				unsupported.add(field.Field)
			default:
				status = status.worse(Warning)
				findings = append(findings, fmt.Sprintf("GPU %d: %v, so the plugin ignores it: send this report", g.Index, field.Err))
			}
		}
	}
	var summary []string
	if len(answered.order) > 0 {
		summary = append(summary, "fields that the driver answers, by GPUs: "+answered.String())
	}
	if len(unsupported.order) > 0 {
		summary = append(summary, "fields that board or driver does not know, by GPUs: "+unsupported.String())
	}
	r.add("health", status, append(summary, findings...)...)
}

// neededNodes are the device nodes, besides the GPUs' own, without which CUDA does not start.
var neededNodes = []string{"nvidiactl", "nvidia-uvm"}

// checkEdits derives what containers of every GPU and every partition would get.
func checkEdits(r *Report, node gpu.Node, hardware Hardware, hook string) {
	common, err := hardware.Edits.Common()
	if err != nil {
		r.add("CDI", Failed, err.Error())
		return
	}
	nodes, partitions, failures := deriveEdits(node, hardware.Edits)
	if len(failures) > 0 { // a claim may have removed its partition meanwhile
		if now, _, err := hardware.GPUs.Discover(); err == nil {
			nodes, partitions, failures = deriveEdits(now, hardware.Edits)
		}
	}
	if _, err := os.Stat(hook); hook != "" && err != nil {
		failures = append(failures, fmt.Sprintf("the hook %s cannot be run (%v), so no container with a GPU would start: wait for the plugin to install it, or set --nvidia-cdi-hook-path", hook, err))
	}
	nodes = append(nodes, nodeNames(common)...)
	slices.Sort(nodes)
	checkNodes(r, slices.Compact(nodes))
	if len(failures) > 0 {
		r.add("CDI", Failed, failures...)
		return
	}
	r.add("CDI", OK, fmt.Sprintf("of all containers: mounts: %d, hooks: %d; GPUs: %d; existing partitions: %d", len(common.Mounts), len(common.Hooks), len(node.GPUs), partitions))
}

// deriveEdits returns the device nodes of all GPUs and the number of existing partitions.
func deriveEdits(node gpu.Node, edits prepare.Edits) (nodes []string, partitions int, failures []string) {
	for _, g := range node.GPUs {
		found, err := edits.GPU(g.UUID)
		if err != nil {
			failures = append(failures, err.Error())
			continue
		}
		nodes = append(nodes, nodeNames(found)...)
		for _, instance := range g.Instances {
			for _, device := range instance.Devices {
				if _, err := edits.Partition(g.UUID, instance.ID, device.ComputeID); err != nil {
					failures = append(failures, err.Error())
				}
				partitions++
			}
		}
	}
	return nodes, partitions, failures
}

func checkNodes(r *Report, nodes []string) {
	for _, needed := range neededNodes {
		if !slices.Contains(nodes, needed) {
			r.add("device nodes", Failed, fmt.Sprintf("/dev/%s is missing: let the NVIDIA driver make it (nvidia-modprobe -u -c=0)", needed))
			return
		}
	}
	r.add("device nodes", OK, strings.Join(nodes, ", "))
}

func nodeNames(edits cdispec.ContainerEdits) []string {
	names := make([]string, len(edits.DeviceNodes))
	for i, node := range edits.DeviceNodes {
		names[i] = path.Base(node.Path)
	}
	return names
}
