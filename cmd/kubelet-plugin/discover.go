package main

import (
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/slice"
)

func newDiscoverCommand(f *flags) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "discover",
		Short: "Print the devices that the plugin would publish, without a cluster",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			print, known := printers[output]
			if !known {
				return fmt.Errorf("output format %q is unknown: use -o table or -o yaml", output)
			}
			library, err := openHardware(command.Context(), cdi.Roots{Host: f.hostDriverRoot, Local: f.localDriverRoot})
			if err != nil {
				return err
			}
			defer func() { _ = library.Close() }() // the process ends here
			node, unreadable, err := library.Discover()
			if err != nil {
				return err
			}
			for _, err := range unreadable {
				fmt.Fprintf(command.ErrOrStderr(), "a GPU cannot be read and would not be offered: %v\n", err)
			}
			for _, g := range node.GPUs {
				for _, difference := range catalog.Differences(g.ProductName, g.Profiles) {
					fmt.Fprintf(command.ErrOrStderr(), "GPU %d, a %s, is not as the catalogue predicts: %s\n", g.Index, g.ProductName, difference)
				}
			}
			return print(command.OutOrStdout(), node, gpu.Shapes(node.GPUs, gpu.ByDefault))
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "table", "Output format: table or yaml.")
	return command
}

var printers = map[string]func(io.Writer, gpu.Node, []gpu.Shape) error{
	"table": printTable,
	"yaml":  printYAML,
}

func printYAML(out io.Writer, node gpu.Node, shapes []gpu.Shape) error {
	pool := slice.Pool(node, shapes, nil)
	specs := make([]resourceapi.ResourceSliceSpec, len(pool.Slices))
	for i, slice := range pool.Slices {
		specs[i].Devices, specs[i].SharedCounters = slice.Devices, slice.SharedCounters
	}
	content, err := yaml.Marshal(specs)
	if err != nil {
		return fmt.Errorf("encode the devices: %w", err)
	}
	_, err = out.Write(content)
	return err
}

func printTable(out io.Writer, node gpu.Node, shapes []gpu.Shape) error {
	fmt.Fprintf(out, "NVIDIA driver %s, CUDA %s\n", node.DriverVersion, node.CUDAVersion)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DEVICE\tTYPE\tPRODUCT\tMEMORY\tPCI\tNUMA\tNVLINK\tUUID")
	for _, shape := range shapes {
		g := shape.Physical()
		if form := shape.Form(); form.Base == gpu.BasePartition || form.Shares > 0 {
			continue // there are many: further tables have them by profile
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d MiB\t%s\t%s\t%s\t%s\n", shape.Name(), shape.Type(),
			g.ProductName, shape.MemoryBytes()>>20, g.PCIBusID, known(g.NUMANode), known(g.NVLinkGroup), shape.UUID())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if err := printPartitions(out, shapes); err != nil {
		return err
	}
	return printShares(out, node, shapes)
}

// printPartitions shows the partitions that can be made, a line for each
// profile and the GPUs that have the same room for it.
func printPartitions(out io.Writer, shapes []gpu.Shape) error {
	lines := partitionLines(shapes)
	if len(lines) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nPartitions that are made when a claim gets them:")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PROFILE\tID\tMEMORY\tSM\tCOPY\tDEC\tENC\tJPEG\tOFA\tMEMORY SLICES\tGPUS")
	for _, line := range lines {
		p := line.profile
		fmt.Fprintf(table, "%s\t%d\t%d MiB\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", p.Name, p.ID, p.MemoryBytes>>20,
			p.Multiprocessors, p.CopyEngines, p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines, line.placements, strings.Join(line.gpus, ","))
	}
	return table.Flush()
}

type partitionLine struct {
	profile    gpu.Profile
	placements string
	gpus       []string
}

func partitionLines(shapes []gpu.Shape) []partitionLine {
	// A shape says nothing of its engines but to who publishes it; the profile of a
	// partition has them, as the columns of this table.
	var rest []gpu.Partition
	for _, shape := range shapes {
		if p, ok := shape.(gpu.Partition); ok {
			rest = append(rest, p)
		}
	}
	var lines []partitionLine
	for len(rest) > 0 {
		first := rest[0]
		var placements []string
		for len(rest) > 0 && rest[0].GPU.Minor == first.GPU.Minor && rest[0].Profile.ID == first.Profile.ID {
			placements = append(placements, memorySlices(rest[0]))
			rest = rest[1:]
		}
		lines = addLine(lines, first, strings.Join(placements, " "))
	}
	return lines
}

func memorySlices(p gpu.Partition) string {
	if p.Profile.Size == 1 {
		return strconv.Itoa(p.Start)
	}
	return fmt.Sprintf("%d-%d", p.Start, p.Start+p.Profile.Size-1)
}

// addLine adds a GPU to the line that says the same of another.
func addLine(lines []partitionLine, p gpu.Partition, placements string) []partitionLine {
	minor := strconv.Itoa(p.GPU.Minor)
	for i, line := range lines {
		if line.placements == placements && reflect.DeepEqual(line.profile, p.Profile) {
			lines[i].gpus = append(line.gpus, minor)
			return lines
		}
	}
	return append(lines, partitionLine{p.Profile, placements, []string{minor}})
}

func known(value *int) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprint(*value)
}
