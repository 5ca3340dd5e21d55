package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/kubectl/load"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
)

// ranking is the options of top.
type ranking struct {
	output terminal.Format
	driver string
	order  load.Order
	idle   bool
	all    bool
	// namespace and service are where the controller answers.
	namespace, service string
}

const topLong = `Print how busy the devices of pods are: the part of the last 15 seconds in which something ran
on them, and the memory that processes have of them. What a device does not tell is a dash.

Mica's controller asks the plugins, and is asked through the API server: one port of its Service. That
takes the Role mica-view-gpus of the chart; without it, or without Mica, only who has which device is
printed. No Prometheus is needed.

The figures of a device in shares are those of all who share it: NVML cannot tell them apart.

Exit codes: 0 printed, 2 nothing could be read.`

func newTopCommand(config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.WithWatch, error)) *cobra.Command {
	var r ranking
	command := &cobra.Command{
		Use:       "top [pods|namespaces]",
		Short:     "Print how busy the devices of pods are, and who has devices that are idle",
		Long:      topLong,
		Example:   "  kubectl gpu top\n  kubectl gpu top pods -n research --sort-by utilization\n  kubectl gpu top namespaces --idle",
		ValidArgs: []string{"pods", "namespaces"},
		RunE: func(command *cobra.Command, args []string) error {
			return r.run(command, config, connect, args)
		},
	}
	flags := command.Flags()
	flags.StringVarP((*string)(&r.output), "output", "o", string(terminal.Tabular), "how to print: table, json or yaml")
	flags.StringVar((*string)(&r.order), "sort-by", string(load.ByName), "by what to sort: name, utilization or memory")
	flags.BoolVar(&r.idle, "idle", false, "print those only with a device on which nothing has run for 15 seconds")
	flags.BoolVarP(&r.all, "all-namespaces", "A", false, "print the pods of all namespaces, as without -n")
	flags.StringVar(&r.namespace, "mica-namespace", "mica", "the namespace of Mica's controller")
	flags.StringVar(&r.service, "controller-service", "mica-controller-metrics", "the Service by which the controller is asked")
	flags.StringVar(&r.driver, "driver-name", slice.DefaultDriver, "the name under which the driver publishes devices")
	return command
}

func (r *ranking) run(command *cobra.Command, config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.WithWatch, error), args []string) error {
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
	seen := inventory.Seen{SlicesHidden: true} // nobody looks for them
	claims := fleetReader{reader: connected, driver: r.driver, namespace: namespace}
	if named && !r.all {
		claims.only = namespace
	}
	if err := claims.readClaims(command.Context(), &seen); err != nil {
		return err
	}
	held := heldBy(seen.Holdings)
	told, untold, err := r.ask(command.Context(), config, held)
	if err != nil {
		return err
	}
	l := load.Of(held, told)
	l.NotSeen = append(append(seen.NotSeen, untold...), l.NotSeen...)
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
	return false, fmt.Errorf("top prints pods or namespaces, and was given %q", args)
}

func (r *ranking) print(command *cobra.Command, l load.Load, byNamespace bool) error {
	out := command.OutOrStdout()
	for _, sentence := range l.NotSeen {
		command.PrintErrln("note:", sentence)
	}
	if r.output != terminal.Tabular {
		return r.output.Encode(out, l)
	}
	if len(l.Pods) == 0 {
		command.PrintErrln("note: no claim that was seen has a device" + map[bool]string{true: " that is idle"}[r.idle])
	}
	table := load.PodTable(l)
	if byNamespace {
		table = load.NamespaceTable(l)
	}
	return terminal.Of(out, os.LookupEnv).Write(out, table)
}

// heldBy are the holdings that take something.
func heldBy(holdings []inventory.Holding) []load.Held {
	var held []load.Held
	for _, h := range holdings {
		if h.Takes() {
			held = append(held, load.Held{Claim: h.Claim, Pods: h.Pods, Node: h.Device.Pool.Name, Device: h.Device.Name, Share: h.Share()})
		}
	}
	return held
}

const (
	// mostNodes are named in a question: for more, it is for all.
	mostNodes = 100
	// mostUsage bounds what is read of an answer, in bytes. A node with eight GPUs takes about 1,500.
	mostUsage = 64 << 20
)

// ask asks the controller, or says in a sentence why it cannot be asked.
func (r *ranking) ask(ctx context.Context, config clientcmd.ClientConfig, held []load.Held) (told usage.Fleet, untold []string, err error) {
	if len(held) == 0 {
		return told, nil, nil
	}
	cluster, err := clusterConfig(config)
	if err != nil {
		return told, nil, err
	}
	core, err := corev1client.NewForConfig(cluster)
	if err != nil {
		return told, nil, fmt.Errorf("connect to the cluster at %s: %w", cluster.Host, err)
	}
	request := core.RESTClient().Get().Namespace(r.namespace).Resource("services").SubResource("proxy").
		Name(utilnet.JoinSchemeNamePort("", r.service, "metrics")).Suffix(usage.Path)
	if nodes := nodesOf(held); len(nodes) <= mostNodes {
		for _, node := range nodes {
			request.Param("node", node)
		}
	}
	answer, err := request.Stream(ctx)
	if err != nil {
		return told, []string{r.silence(err)}, nil
	}
	defer answer.Close()
	if err := json.NewDecoder(io.LimitReader(answer, mostUsage)).Decode(&told); err != nil {
		return usage.Fleet{}, []string{fmt.Sprintf("what Service %s in namespace %s says of devices is not understood (%s): see that kubectl gpu and Mica's controller are of one release", r.service, r.namespace, err)}, nil
	}
	return told, nil, nil
}

func nodesOf(held []load.Held) []string {
	var nodes []string
	seen := map[string]bool{}
	for _, h := range held {
		if !seen[h.Node] {
			nodes = append(nodes, h.Node)
		}
		seen[h.Node] = true
	}
	return nodes
}

// silence says why there are no figures, and what to do.
func (r *ranking) silence(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("you may not read how busy devices are (get services/proxy of %s:metrics in namespace %s): ask for the Role mica-view-gpus of Mica's chart there (value viewGPUs.subjects)", r.service, r.namespace)
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("nobody tells how busy devices are: there is no Service %s in namespace %s that does, so install Mica's chart with controller.enabled, or name them with --mica-namespace and --controller-service", r.service, r.namespace)
	case apierrors.IsServiceUnavailable(err):
		return fmt.Sprintf("nobody tells how busy devices are: Service %s in namespace %s does not answer (%s): see that a pod of the controller is ready, and that networkPolicy.metricsFrom lets the API server in", r.service, r.namespace, err)
	}
	return fmt.Sprintf("nobody tells how busy devices are: %s", err)
}
