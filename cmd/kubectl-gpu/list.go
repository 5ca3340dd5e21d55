package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
)

// listing has the options of list.
type listing struct {
	output terminal.Format
	driver string
	filter inventory.Filter
	all    bool
}

const listExample = `  kubectl gpu list
  kubectl gpu list --node ip-10-0-0-1 -o wide
  kubectl gpu list --free --product h100
  kubectl gpu list -n research
  kubectl gpu list -o json | jq '.gpus[] | select(.taints != []) | .node + " " + .uuid'`

const listLong = `Print each GPU: its product, the shapes in use, the memory that claims hold, its taints, and the
pods that hold it. The command reads ResourceSlices, ResourceClaims and DeviceTaintRules of Mica's
driver or NVIDIA's.

ROOM in the wide table lists the shapes that a claim without tolerations could get now. It does not
count devices, because partitions overlap.

If you may not list a kind, a line on standard error says so, and the rest is printed. With -n, only
GPUs are printed that claims of this namespace hold.

Exit codes: 0 printed, 2 nothing could be read.`

func newListCommand(config clientcmd.ClientConfig, connect connecter) *cobra.Command {
	var l listing
	command := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Print the GPUs: the shapes in use, the pods that hold them, what is free and what is wrong",
		Long:    listLong,
		Example: listExample,
		Args:    noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return l.run(command, config, connect)
		},
	}
	flags := command.Flags()
	flags.StringVarP((*string)(&l.output), "output", "o", string(terminal.Tabular), "how to print: table, wide, json or yaml")
	flags.StringArrayVar(&l.filter.Nodes, "node", nil, "print only the GPUs of this node; can be repeated")
	flags.StringVar(&l.filter.Product, "product", "", "print only GPUs whose product name contains this, such as h100")
	flags.BoolVar(&l.filter.Free, "free", false, "print only GPUs with room for a claim that tolerates no taint")
	flags.BoolVarP(&l.all, "all-namespaces", "A", false, "print the GPUs of all namespaces, as without -n")
	flags.StringVar(&l.driver, "driver-name", slice.DefaultDriver, "the name under which the driver publishes devices")
	return command
}

// noArguments refuses arguments, which would be ignored.
func noArguments(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%s takes no arguments, but got %q: see kubectl gpu %s --help for its flags", command.Name(), args, command.Name())
}

func (l *listing) run(command *cobra.Command, config clientcmd.ClientConfig, connect connecter) error {
	if err := l.output.Check(terminal.Tabular, terminal.Wide, terminal.JSON, terminal.YAML); err != nil {
		return err
	}
	namespace, named, err := namespaceOf(config)
	if err != nil {
		return err
	}
	if named && !l.all {
		l.filter.Namespace = namespace
	}
	connected, err := connect(config)
	if err != nil {
		return err
	}
	f, err := fleet.Read(command.Context(), connected, fleet.Scope{Driver: l.driver, Namespace: namespace, Nodes: l.filter.Nodes})
	if err != nil {
		return err
	}
	if l.filter.Free && f.OfNamespace != "" {
		return fmt.Errorf("--free cannot be answered: what is free depends on the claims of all namespaces, and %s", fleet.NotAllClaims)
	}
	all := f.GPUs()
	selected := l.filter.Select(all)
	switch {
	case len(all) == 0 && len(f.Unseen) == 0:
		printNotes(command, fmt.Sprintf("no ResourceSlice of driver %s exists: check that its plugin runs on the nodes with GPUs, by kubectl get pods -A -o wide", l.driver))
	case len(selected) == 0 && len(all) > 0:
		printNotes(command, fmt.Sprintf("no GPU of %d matches: leave out --node, --product, --free or -n", len(all)))
	}
	printNotes(command, f.Unseen...)
	if l.output == terminal.JSON || l.output == terminal.YAML {
		return l.output.Encode(command.OutOrStdout(), inventory.Inventory{GPUs: selected, NotSeen: f.Unseen})
	}
	printNotes(command, problems(selected)...)
	out := command.OutOrStdout()
	return terminal.Of(out, os.LookupEnv).Write(out, inventory.Table(selected, l.output == terminal.Wide))
}

// problems are the first problems of the GPUs, each once.
func problems(gpus []fleet.GPU) []string {
	const most = 3
	var all []string
	for _, g := range gpus {
		if g.Problem == "" || slices.Contains(all, g.Problem) {
			continue
		}
		if len(all) == most {
			return append(all, "more GPUs are incomplete: -o json has the reason of each")
		}
		all = append(all, g.Problem)
	}
	return all
}

// printNotes prints sentences to standard error, where programs that read the output do not see them.
func printNotes(command *cobra.Command, sentences ...string) {
	for _, sentence := range sentences {
		command.PrintErrln("note:", sentence)
	}
}
