package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/cdi"
	"github.com/mica-gpu/mica/pkg/gpu"
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
			opened, err := openHardware(command.Context(), cdi.Roots{Host: f.hostDriverRoot, Local: f.localDriverRoot})
			if err != nil {
				return err
			}
			defer func() { _ = opened.Close() }() // the process ends here
			node, unreadable, err := opened.Discover()
			if err != nil {
				return err
			}
			for _, err := range unreadable {
				fmt.Fprintf(command.ErrOrStderr(), "a GPU cannot be read and would not be offered: %v\n", err)
			}
			pool, err := slice.Pool(node, gpu.Shapes(node.GPUs))
			if err != nil {
				return err
			}
			return print(command.OutOrStdout(), node, pool)
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "table", "Output format: table or yaml.")
	return command
}

var printers = map[string]func(io.Writer, gpu.Node, resourceslice.Pool) error{
	"table": printTable,
	"yaml":  printYAML,
}

func printYAML(out io.Writer, _ gpu.Node, pool resourceslice.Pool) error {
	specs := make([]resourceapi.ResourceSliceSpec, len(pool.Slices))
	for i, slice := range pool.Slices {
		specs[i].Devices = slice.Devices
	}
	content, err := yaml.Marshal(specs)
	if err != nil {
		return fmt.Errorf("encode the devices: %w", err)
	}
	_, err = out.Write(content)
	return err
}

func printTable(out io.Writer, node gpu.Node, _ resourceslice.Pool) error {
	fmt.Fprintf(out, "NVIDIA driver %s, CUDA %s\n", node.DriverVersion, node.CUDAVersion)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DEVICE\tTYPE\tPRODUCT\tMEMORY\tPCI\tNUMA\tNVLINK\tUUID")
	for _, shape := range gpu.Shapes(node.GPUs) {
		g := shape.Physical()
		fmt.Fprintf(table, "%s\t%s\t%s\t%d MiB\t%s\t%s\t%s\t%s\n", shape.Name(), shape.Type(),
			g.ProductName, g.MemoryBytes>>20, g.PCIBusID, known(g.NUMANode), known(g.NVLinkGroup), g.UUID)
	}
	return table.Flush()
}

func known(value *int) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprint(*value)
}
