package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
)

// ranking has the options of top.
type ranking struct {
	output terminal.Format
	driver string
	order  inventory.Order
	idle   bool
	all    bool
	// namespace and service are those of the controller.
	namespace, service string
}

const topLong = `Print how busy the devices of pods are: the part of the last 15 seconds in which something ran
on them, and the memory that processes use. A dash stands for a figure that a device does not report.

Mica's controller has the figures, and the API server forwards the request to its Service. This takes
the Role mica-view-gpus of the chart. Without it, or without Mica, only pods and their devices are
printed. No Prometheus is needed.

The figures of a shared device include all pods that share it, because NVML does not separate them.

Exit codes: 0 printed, 2 nothing could be read.`

func newTopCommand(config clientcmd.ClientConfig, connect connecter) *cobra.Command {
	var r ranking
	command := &cobra.Command{
		Use:       "top [pods|namespaces]",
		Short:     "Print how busy the devices of pods are, and which are idle",
		Long:      topLong,
		Example:   "  kubectl gpu top\n  kubectl gpu top pods -n research --sort-by utilization\n  kubectl gpu top namespaces --idle",
		ValidArgs: []string{"pods", "namespaces"},
		RunE: func(command *cobra.Command, args []string) error {
			return r.run(command, config, connect, args)
		},
	}
	flags := command.Flags()
	flags.StringVarP((*string)(&r.output), "output", "o", string(terminal.Tabular), "how to print: table, json or yaml")
	flags.StringVar((*string)(&r.order), "sort-by", string(inventory.ByName), "by what to sort: name, utilization or memory")
	flags.BoolVar(&r.idle, "idle", false, "print only those with a device on which nothing ran for 15 seconds")
	flags.BoolVarP(&r.all, "all-namespaces", "A", false, "print the pods of all namespaces, as without -n")
	flags.StringVar(&r.namespace, "mica-namespace", "mica", "the namespace of Mica's controller")
	flags.StringVar(&r.service, "controller-service", "mica-controller-metrics", "the Service by which the controller is asked")
	flags.StringVar(&r.driver, "driver-name", slice.DefaultDriver, "the name under which the driver publishes devices")
	return command
}

func (r *ranking) run(command *cobra.Command, config clientcmd.ClientConfig, connect connecter, args []string) error {
	byNamespace, err := wantsNamespaces(args)
	if err != nil {
		return err
	}
	if err := r.order.Check(); err != nil {
		return err
	}
	if err := r.output.Check(terminal.Tabular, terminal.JSON, terminal.YAML); err != nil {
		return err
	}
	namespace, named, err := namespaceOf(config)
	if err != nil {
		return err
	}
	connected, err := connect(config)
	if err != nil {
		return err
	}
	f, err := fleet.Read(command.Context(), connected, fleet.Scope{Driver: r.driver, Namespace: namespace, OneNamespace: named && !r.all, ClaimsOnly: true})
	if err != nil {
		return err
	}
	measured, failure, err := r.measured(command.Context(), config, f.Holdings)
	if err != nil {
		return err
	}
	l := inventory.NewLoad(f.Holdings, measured)
	l.NotSeen = slices.Concat(f.Unseen, failure, l.NotSeen)
	if r.idle {
		l = l.Idle()
	}
	return r.print(command, l.Sorted(r.order), byNamespace)
}

func wantsNamespaces(args []string) (bool, error) {
	if len(args) == 0 {
		return false, nil
	}
	if len(args) == 1 {
		switch args[0] {
		case "pods", "pod", "po":
			return false, nil
		case "namespaces", "namespace", "ns":
			return true, nil
		}
	}
	return false, fmt.Errorf("unknown arguments %q: use pods or namespaces", args)
}

func (r *ranking) print(command *cobra.Command, l inventory.Load, byNamespace bool) error {
	out := command.OutOrStdout()
	printNotes(command, l.NotSeen...)
	if r.output != terminal.Tabular {
		return r.output.Encode(out, l)
	}
	if len(l.Pods) == 0 {
		printNotes(command, "no claim that was seen has a device"+map[bool]string{true: " that is idle"}[r.idle])
	}
	table := inventory.PodTable(l)
	if byNamespace {
		table = inventory.NamespaceTable(l)
	}
	return terminal.Of(out, os.LookupEnv).Write(out, table)
}

const (
	// mostNodes bounds the nodes that a request names. For more, it asks for all.
	mostNodes = 100
	// mostUsage bounds the size of an answer in bytes. A node with eight GPUs takes about 1,500.
	mostUsage = 64 << 20
)

// measured asks the controller how busy devices are. The failure is a sentence if it cannot answer.
func (r *ranking) measured(ctx context.Context, config clientcmd.ClientConfig, held []fleet.Holding) (measured usage.Fleet, failure []string, err error) {
	if len(held) == 0 {
		return measured, nil, nil
	}
	cluster, err := clusterConfig(config)
	if err != nil {
		return measured, nil, err
	}
	core, err := corev1client.NewForConfig(cluster)
	if err != nil {
		return measured, nil, fmt.Errorf("connect to the cluster at %s: %w", cluster.Host, err)
	}
	request := core.RESTClient().Get().Namespace(r.namespace).Resource("services").SubResource("proxy").
		Name(utilnet.JoinSchemeNamePort("", r.service, "metrics")).Suffix(usage.Path)
	nodes := sets.New[string]()
	for _, h := range held {
		nodes.Insert(h.Pool())
	}
	if nodes.Len() <= mostNodes {
		for _, node := range sets.List(nodes) {
			request.Param("node", node)
		}
	}
	answer, err := request.Stream(ctx)
	if err != nil {
		return measured, []string{r.unanswered(err)}, nil
	}
	defer answer.Close()
	if err := json.NewDecoder(io.LimitReader(answer, mostUsage)).Decode(&measured); err != nil {
		return usage.Fleet{}, []string{fmt.Sprintf("cannot read the answer of Service %s in namespace %s (%s): check that kubectl gpu and Mica's controller are of the same release", r.service, r.namespace, err)}, nil
	}
	return measured, nil, nil
}

// unanswered explains why there are no figures, and what to do.
func (r *ranking) unanswered(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("you may not read how busy devices are (get services/proxy of %s:metrics in namespace %s): ask for the Role mica-view-gpus of Mica's chart there (value viewGPUs.subjects)", r.service, r.namespace)
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("how busy devices are is unknown: there is no Service %s in namespace %s: install Mica's chart with controller.enabled, or set --mica-namespace and --controller-service", r.service, r.namespace)
	case apierrors.IsServiceUnavailable(err):
		return fmt.Sprintf("how busy devices are is unknown: Service %s in namespace %s does not answer (%s): check that a pod of the controller is ready, and that networkPolicy.metricsFrom lets the API server in", r.service, r.namespace, err)
	}
	return fmt.Sprintf("how busy devices are is unknown: %s", err)
}
