package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
)

// printShares shows what several claims can have shares of, a line for the devices
// of which a share is the same, with what a claim gets that asks for nothing special.
func printShares(out io.Writer, node gpu.Node, shapes []gpu.Shape) error {
	lines := shareLines(node, shapes)
	if len(lines) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nDevices that several claims have shares of:")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TYPE\tPROFILE\tSHARES\tMEMORY\tONE SHARE\tGPUS")
	for _, line := range lines {
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\n", line.deviceType, line.profile, line.count, line.memory, line.share, strings.Join(line.gpus, ","))
	}
	return table.Flush()
}

// shareOf is what the lines of a table are told apart by.
type shareOf struct {
	deviceType, profile string
	count               int
	memory, share       string
}

type shareLine struct {
	shareOf
	gpus []string
}

func shareLines(node gpu.Node, shapes []gpu.Shape) []shareLine {
	published := map[string]resourceapi.Device{}
	for _, s := range slice.Pool(node, shapes, nil).Slices {
		for _, device := range s.Devices {
			published[device.Name] = device
		}
	}
	var lines []shareLine
	for _, shape := range shapes {
		form := shape.Form()
		if form.Shares == 0 {
			continue
		}
		of := shareOf{
			deviceType: shape.Type(), profile: cmp.Or(form.Profile, "-"), count: form.Shares,
			memory: mebibytes(int64(shape.MemoryBytes())), share: defaults(published[shape.Name()].Capacity),
		}
		minor := strconv.Itoa(shape.Physical().Minor)
		i := slices.IndexFunc(lines, func(l shareLine) bool { return l.shareOf == of })
		switch {
		case i < 0:
			lines = append(lines, shareLine{of, []string{minor}})
		case !slices.Contains(lines[i].gpus, minor):
			lines[i].gpus = append(lines[i].gpus, minor)
		}
	}
	return lines
}

// defaults are what a claim takes of capacities that does not say how much.
func defaults(capacity map[resourceapi.QualifiedName]resourceapi.DeviceCapacity) string {
	var parts []string
	if cores, limited := capacity[gpu.CapacityCores]; limited {
		parts = append(parts, fmt.Sprintf("%d%% of the cores", cores.RequestPolicy.Default.Value()))
	}
	if memory, counted := capacity[gpu.CapacityMemory]; counted {
		parts = append(parts, mebibytes(memory.RequestPolicy.Default.Value()))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// mebibytes writes an amount of memory as the other tables do, and that it is not known.
func mebibytes(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}
