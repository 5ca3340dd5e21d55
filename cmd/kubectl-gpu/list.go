package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
)

// listing is the options of list.
type listing struct {
	output string
	driver string
	filter inventory.Filter
	all    bool
	watch  bool
	// print is set from output.
	print printer
}

const listExample = `  kubectl gpu list
  kubectl gpu list --node ip-10-0-0-1 -o wide
  kubectl gpu list --free --product h100
  kubectl gpu list -n research
  kubectl gpu list -o json | jq '.gpus[] | select(.taints != []) | .node + " " + .uuid'`

const listLong = `Print each GPU: its product, the shapes in which it is in use, how much of its memory
claims have, what is wrong with it and who has it. It reads ResourceSlices, ResourceClaims and
DeviceTaintRules, of Mica's driver or NVIDIA's.

ROOM in the wide table is what a claim that tolerates no taint could get now, one entry per shape: it
is what the counters of the GPU have left, not a number of devices, because partitions overlap.

If you may not see something, a line on standard error says so, and the rest is printed. With -n, only
the GPUs are printed that claims of this namespace hold.

Exit codes: 0 printed, 2 nothing could be read.`

func newListCommand(config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (*fleet, error)) *cobra.Command {
	var l listing
	command := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Print the GPUs: in what shape each is in use, who has it, what is left of it and what is wrong with it",
		Long:    listLong,
		Example: listExample,
		Args:    noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return l.run(command, config, connect)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&l.output, "output", "o", string(terminal.Tabular), "how to print: table, wide, json or yaml")
	flags.StringArrayVar(&l.filter.Nodes, "node", nil, "print only the GPUs of this node; can be repeated")
	flags.StringVar(&l.filter.Product, "product", "", "print only GPUs whose product name contains this, such as h100")
	flags.BoolVar(&l.filter.Free, "free", false, "print only GPUs with room for a claim that tolerates no taint")
	flags.BoolVarP(&l.all, "all-namespaces", "A", false, "print the GPUs of all namespaces, as without -n")
	flags.BoolVarP(&l.watch, "watch", "w", false, "go on printing the GPUs that change")
	flags.StringVar(&l.driver, "driver-name", slice.DefaultDriver, "the name under which the driver publishes devices")
	return command
}

// noArguments refuses what would be ignored.
func noArguments(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%s takes no arguments, and was given %q: see kubectl gpu %s --help for its flags", command.Name(), args, command.Name())
}

func (l *listing) run(command *cobra.Command, config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (*fleet, error)) error {
	format := terminal.Format(l.output)
	if err := format.Check(terminal.Tabular, terminal.Wide, terminal.JSON, terminal.YAML); err != nil {
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
	out := command.OutOrStdout()
	l.print = printer{out: out, notes: command.ErrOrStderr(), screen: terminal.Of(out, os.LookupEnv), format: format}
	r := fleetReader{reader: connected, sliceAnswers: connected.sliceAnswers, driver: l.driver, namespace: namespace, nodes: l.filter.Nodes}
	if l.watch {
		return l.follow(command.Context(), connected, r)
	}
	seen, err := r.read(command.Context())
	if err != nil {
		return err
	}
	return l.show(seen)
}

// show prints what the filter chooses.
func (l *listing) show(seen inventory.Seen) error {
	all := inventory.Of(seen)
	if l.filter.Free && seen.OfNamespace != "" {
		return fmt.Errorf("--free cannot be answered: what is free depends on the claims of all namespaces, and %s", notAllClaims)
	}
	chosen := all.Only(l.filter)
	switch {
	case len(all.GPUs) == 0 && len(seen.NotSeen) == 0:
		l.print.note(fmt.Sprintf("no ResourceSlice of driver %s is there: see that its plugin runs on the nodes with GPUs, by kubectl get pods -A -o wide", l.driver))
	case len(chosen.GPUs) == 0 && len(all.GPUs) > 0:
		l.print.note(fmt.Sprintf("none of %d GPUs is what was asked for: leave out --node, --product, --free or -n", len(all.GPUs)))
	}
	return l.print.inventory(chosen)
}

// printer prints for people or for programs.
type printer struct {
	out, notes io.Writer
	screen     terminal.Screen
	format     terminal.Format
}

func (p printer) inventory(i inventory.Inventory) error {
	for _, sentence := range i.NotSeen {
		p.note(sentence)
	}
	switch p.format {
	case terminal.Tabular, terminal.Wide:
		p.problems(i)
		return p.screen.Write(p.out, inventory.Table(i, p.format == terminal.Wide))
	}
	return p.format.Encode(p.out, i)
}

// problems are in the output for programs. People are told of some.
func (p printer) problems(i inventory.Inventory) {
	const most = 3
	told := map[string]bool{}
	for _, g := range i.GPUs {
		if g.Problem == "" || told[g.Problem] {
			continue
		}
		if told[g.Problem] = true; len(told) > most {
			p.note("more GPUs are incomplete: -o json has the reason of each")
			return
		}
		p.note(g.Problem)
	}
}

// note tells people what the output does not: it is not in the way of programs.
func (p printer) note(sentence string) {
	// Who closes standard error wants no notes.
	_, _ = fmt.Fprintln(p.notes, "note:", sentence)
}

// errBlind is the error where nothing could be read.
var errBlind = errors.New("nothing can be shown: you may list no ResourceClaims, neither of all namespaces nor of yours: " + askFor)
