package main

import (
	"fmt"
	"io"
	"slices"
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
				fmt.Fprintf(command.ErrOrStderr(), "Cannot read a GPU; it would not be offered: %v\n", err)
			}
			for _, line := range unlikeCatalogue(node.GPUs) {
				fmt.Fprintln(command.ErrOrStderr(), line)
			}
			return print(command.OutOrStdout(), node, gpu.Shapes(node.GPUs, gpu.ByDefault))
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "table", "Output format: table or yaml.")
	return command
}

// unlikeCatalogue lists what the catalogue does not predict, once per product.
func unlikeCatalogue(gpus []gpu.GPU) (lines []string) {
	add := func(line string) {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	for _, g := range gpus {
		if g.MIG == gpu.MIGDisabled && len(g.Profiles) == 0 {
			add(fmt.Sprintf("The driver lists no MIG profiles of %s while MIG is disabled, so partitions are offered when it is enabled", g.ProductName))
		}
		for _, difference := range catalog.Differences(g.ProductName, g.Profiles) {
			add(fmt.Sprintf("%s differs from the catalogue: %s", g.ProductName, difference))
		}
	}
	return lines
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
		if shape.Form().Base == gpu.BasePartition {
			continue // there are many: another table has them by profile
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d MiB\t%s\t%s\t%s\t%s\n", shape.Name(), shape.Type(),
			g.ProductName, shape.MemoryBytes()>>20, g.PCIBusID, known(g.NUMANode), known(g.NVLinkGroup), shape.UUID())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return printPartitions(out, shapes)
}

// printPartitions prints the partitions that can be made: a line per profile, placements and the
// GPUs that have both.
func printPartitions(out io.Writer, shapes []gpu.Shape) error {
	type room struct{ minor, profile int }
	var rooms []room
	profiles, placements := map[room]gpu.Profile{}, map[room][]string{}
	for _, shape := range shapes {
		if p, is := shape.(gpu.Partition); is {
			r := room{p.GPU.Minor, p.Profile.ID}
			if placements[r] == nil {
				rooms = append(rooms, r)
			}
			profiles[r], placements[r] = p.Profile, append(placements[r], memorySlices(p))
		}
	}
	if len(rooms) == 0 {
		return nil
	}
	var lines []string
	gpus := map[string][]string{}
	for _, r := range rooms {
		p := profiles[r]
		line := fmt.Sprintf("%s\t%d\t%d MiB\t%d\t%d\t%d\t%d\t%d\t%d\t%s", p.Name, p.ID, p.MemoryBytes>>20,
			p.Multiprocessors, p.CopyEngines, p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines, strings.Join(placements[r], " "))
		if gpus[line] == nil {
			lines = append(lines, line)
		}
		gpus[line] = append(gpus[line], strconv.Itoa(r.minor))
	}
	fmt.Fprintln(out, "\nPartitions that are made when a claim gets them:")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PROFILE\tID\tMEMORY\tSM\tCOPY\tDEC\tENC\tJPEG\tOFA\tMEMORY SLICES\tGPUS")
	for _, line := range lines {
		fmt.Fprintf(table, "%s\t%s\n", line, strings.Join(gpus[line], ","))
	}
	return table.Flush()
}

func memorySlices(p gpu.Partition) string {
	if p.Profile.Size == 1 {
		return strconv.Itoa(p.Start)
	}
	return fmt.Sprintf("%d-%d", p.Start, p.Start+p.Profile.Size-1)
}

func known(value *int) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprint(*value)
}
