package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/kubectl/simulate"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// simulateOptions are those of simulate.
type simulateOptions struct {
	options
	machineOptions

	files, templates []string
	offline          bool
	// namespace is that of objects that name none.
	namespace string
}

func newSimulateCommand(config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.Reader, error)) *cobra.Command {
	var o simulateOptions
	var startup startupTaints
	o.output = terminal.Tabular
	command := &cobra.Command{
		Use:   "simulate -f FILE",
		Short: "Say where pods would go and which devices they would get, before they are created",
		Long: "Plan for the pods of manifests as the scheduler and Mica's controller would: on this cluster and what its\n" +
			"groups could add, or with --template on imagined nodes and no cluster at all. It creates nothing.\n\n" +
			"Exit codes: 0: every pod has a node, one that exists or one that a group would add. 1: some pod has none.\n" +
			"2: there is no answer, because the files are wrong or the cluster cannot be read.",
		Example: "  kubectl gpu simulate -f pods.yaml\n  kubectl gpu simulate -f llm.yaml --template p5.48xlarge=2 --template g6e.12xlarge\n" +
			"  helm template my-chart | kubectl gpu simulate -f - -o json",
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("simulate reads files by -f and takes no other arguments, and was given %q", args)
			}
			if err := o.output.Check(terminal.Tabular, terminal.Wide, terminal.JSON, terminal.YAML); err != nil {
				return err
			}
			startup.declare()
			reader, err := o.connect(config, connect)
			if err != nil {
				return err
			}
			return o.run(command.Context(), reader, command.InOrStdin(), command.OutOrStdout())
		},
	}
	command.Flags().StringArrayVarP(&o.files, "filename", "f", nil, "a file with pods, workloads and claims as for kubectl apply, or - for standard input; may be given several times")
	command.Flags().StringArrayVar(&o.templates, "template", nil, "TYPE or TYPE=COUNT: simulate on so many empty nodes of an instance type, such as p5.48xlarge=2, without a cluster; may be given several times")
	command.Flags().BoolVar(&o.offline, "offline", false, "ask no cluster: only what is in the files counts, such as GPUNodeGroups")
	command.Flags().StringVarP((*string)(&o.output), "output", "o", string(o.output), "how to print: table, wide, json or yaml")
	o.machineOptions.addFlags(command)
	o.addAutoscalerFlags(command)
	startup.addFlags(command)
	return command
}

// connect gives no reader where there is to be no cluster.
func (o *simulateOptions) connect(config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.Reader, error)) (client.Reader, error) {
	o.options.driver = o.machineOptions.driver
	namespace, _, err := namespaceOf(config)
	if o.offline = o.offline || len(o.templates) > 0; o.offline {
		o.namespace = namespace
		if err != nil {
			o.namespace = "default" // a kubeconfig that cannot be read is of no account
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if o.policy != "" {
		return nil, errors.New("--policy is for imagined nodes: give --template or --offline as well, or put the GPUPolicy into a file of -f")
	}
	o.namespace = namespace
	return connect(config)
}

// run simulates with what the reader has; nil: without a cluster.
func (o *simulateOptions) run(ctx context.Context, reader client.Reader, in io.Reader, out io.Writer) error {
	manifest, err := o.read(in)
	if err != nil {
		return err
	}
	if o.offline {
		err = o.imagine(manifest, in)
	}
	if err != nil {
		return err
	}
	if err := manifest.Prioritize(func(name string) (int32, error) { return priorityOf(ctx, reader, name) }); err != nil {
		return err
	}
	v, err := look(ctx, simulate.Overlay{Base: reader, Manifest: manifest}, o.options, time.Now())
	if err != nil {
		return err
	}
	result, err := simulate.Run(ctx, v, manifest)
	if err != nil {
		return err
	}
	return o.print(out, result)
}

func (o *simulateOptions) read(in io.Reader) (*simulate.Manifest, error) {
	if len(o.files) == 0 {
		return nil, errors.New("simulate wants a file with pods: give -f FILE, or -f - for standard input")
	}
	files, err := simulate.NewReader(o.namespace)
	if err != nil {
		return nil, err
	}
	for _, name := range o.files {
		if err := readFile(files, name, in); err != nil {
			return nil, err
		}
	}
	return files.Manifest()
}

// imagine adds the nodes of --template, and what Mica's chart would have installed.
func (o *simulateOptions) imagine(manifest *simulate.Manifest, in io.Reader) error {
	defaults, err := simulate.Defaults(o.machineOptions.driver)
	if err != nil {
		return err
	}
	if o.policy != "" {
		policies, err := o.policies(in)
		if err != nil {
			return err
		}
		manifest.SetPolicies(policies)
	}
	manifest.AddDefaults(defaults)
	for _, text := range o.templates {
		instanceType, count, err := simulate.ParseCount(text)
		if err != nil {
			return fmt.Errorf("--template: %w", err)
		}
		predicted, err := o.machine(instanceType, manifest.Policies()).Predict()
		if err != nil {
			return fmt.Errorf("--template: %w", suggested(err, instanceType))
		}
		manifest.AddNodes(predicted, instanceType, count)
	}
	return nil
}

// priorityOf asks the cluster for a PriorityClass.
func priorityOf(ctx context.Context, reader client.Reader, name string) (int32, error) {
	missing := fmt.Errorf("there is no PriorityClass %s: create it, or add it to the files", name)
	if reader == nil {
		return 0, missing
	}
	var class schedulingv1.PriorityClass
	err := reader.Get(ctx, client.ObjectKey{Name: name}, &class)
	switch {
	case apierrors.IsNotFound(err):
		return 0, missing
	case err != nil:
		return 0, fmt.Errorf("read PriorityClass %s: %w: add it to the files, or ask for the right to get priorityclasses", name, err)
	}
	return class.Value, nil
}

func (o *simulateOptions) print(out io.Writer, result *simulate.Result) error {
	var err error
	switch o.output {
	case terminal.Tabular, terminal.Wide:
		err = result.Write(out, terminal.Of(out, os.LookupEnv), o.output == terminal.Wide)
	default:
		err = o.output.Encode(out, result)
	}
	if missing := result.Missing(); err == nil && missing != "" {
		return no(missing)
	}
	return err
}

// startupTaints are those that the controller was told of.
type startupTaints struct{ keys, prefixes []string }

func (t *startupTaints) addFlags(command *cobra.Command) {
	command.Flags().StringArrayVar(&t.keys, "startup-taint", nil, "the key of a taint that new nodes lose once they have started, as the controller's flag has it")
	command.Flags().StringArrayVar(&t.prefixes, "startup-taint-prefix", nil, "a prefix of keys of such taints, as the controller's flag has it")
}

func (t *startupTaints) declare() { template.DeclareStartup(t.keys, t.prefixes) }
