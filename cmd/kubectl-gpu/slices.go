package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/kubectl/simulate"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
)

// machineOptions say what nodes would have that do not exist.
type machineOptions struct {
	driver, driverVersion, cudaVersion, policy string
}

func (o *machineOptions) addFlags(command *cobra.Command) {
	command.Flags().StringVar(&o.driver, "driver-name", slice.DefaultDriver, "the name under which Mica's driver publishes devices")
	command.Flags().StringVar(&o.driverVersion, "driver-version", "", "the version of NVIDIA's driver on the imagined nodes, such as 580.95.05")
	command.Flags().StringVar(&o.cudaVersion, "cuda-version", "", "the version of CUDA that the driver brings, such as 13.0")
	command.Flags().StringVar(&o.policy, "policy", "", "a file with the cluster's GPUPolicies, or - for standard input; by default the policy of Mica's chart")
}

// policies are those of the file, or else the chart's.
func (o *machineOptions) policies(in io.Reader) ([]*v1alpha1.GPUPolicy, error) {
	if o.policy == "" {
		defaults, err := simulate.Defaults(o.driver)
		if err != nil {
			return nil, err
		}
		return defaults.Policies(), nil
	}
	reader, err := simulate.NewReader("")
	if err != nil {
		return nil, err
	}
	if err := readFile(reader, o.policy, in); err != nil {
		return nil, err
	}
	return reader.Policies()
}

// machine is a node of the type. A name that is not known gets those that are alike.
func (o *machineOptions) machine(instanceType string, policies []*v1alpha1.GPUPolicy) simulate.Machine {
	return simulate.Machine{InstanceType: instanceType, Driver: o.driver, DriverVersion: o.driverVersion, CUDAVersion: o.cudaVersion, Policies: policies}
}

// readFile adds a file, or for - what comes from standard input.
func readFile(reader *simulate.Reader, name string, in io.Reader) error {
	if name == "-" {
		return reader.Read("standard input", in)
	}
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read the objects: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	return reader.Read(name, file)
}

func newSlicesCommand() *cobra.Command {
	var o machineOptions
	output := terminal.Tabular
	command := &cobra.Command{
		Use:   "slices INSTANCE-TYPE",
		Short: "Print what a node of an instance type would publish, without a cluster",
		Example: "  kubectl gpu slices p5.48xlarge\n  kubectl gpu slices g6e.12xlarge -o yaml\n" +
			"  kubectl get gpupolicies -o yaml | kubectl gpu slices p5.48xlarge --policy -",
		RunE: func(command *cobra.Command, args []string) error {
			if err := output.Check(terminal.Tabular, terminal.Wide, terminal.JSON, terminal.YAML); err != nil {
				return err
			}
			if len(args) != 1 {
				return fmt.Errorf("slices wants one instance type, such as p5.48xlarge, and was given %q", strings.Join(args, " "))
			}
			policies, err := o.policies(command.InOrStdin())
			if err != nil {
				return err
			}
			published, err := o.machine(args[0], policies).Published()
			if err != nil {
				return suggested(err, args[0])
			}
			out := command.OutOrStdout()
			if output == terminal.Tabular || output == terminal.Wide {
				return published.Write(out, terminal.Of(out, os.LookupEnv), output == terminal.Wide)
			}
			return output.Encode(out, published.List())
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return catalog.InstanceTypes(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	command.Flags().StringVarP((*string)(&output), "output", "o", string(output), "how to print: table, wide, json or yaml")
	o.addFlags(command)
	return command
}

// suggested adds the names that are most like an instance type which the catalogue does not have.
func suggested(err error, instanceType string) error {
	if !errors.Is(err, catalog.ErrUnknownInstance) {
		return err
	}
	known := catalog.InstanceTypes()
	if meant := alike(instanceType, known); len(meant) > 0 {
		return fmt.Errorf("%w; did you mean %s?", err, strings.Join(meant, ", "))
	}
	var families []string
	for _, name := range known {
		if family, _, _ := strings.Cut(name, "."); !slices.Contains(families, family) {
			families = append(families, family)
		}
	}
	return fmt.Errorf("%w; it has types of the families %s", err, strings.Join(families, ", "))
}
