package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/kubectl/explain"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	reasons "github.com/mica-gpu/mica/pkg/scaleout/explain"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/pkg/slice"
)

// options are the flags of explain.
type options struct {
	driver string
	// autoscaler is the ConfigMap with the status of Cluster Autoscaler.
	autoscaler types.NamespacedName
	output     terminal.Format
	// files and templates are those of explainer.manifest.
	files, templates []string
	offline          bool
	// startup are those of the controller's flags.
	startup template.StartupTaints
}

// result is printed: value as JSON or YAML, table for people, notes on standard error. If missing is not empty, the
// command ends with exitNo.
type result struct {
	value   any
	table   func(io.Writer, terminal.Screen) error
	notes   []string
	missing string
}

func (o options) write(w io.Writer, screen terminal.Screen, r result) error {
	if o.output == terminal.Tabular {
		return r.table(w, screen)
	}
	return o.output.Encode(w, r.value)
}

const explainLong = `Explain why a pod or a claim waits: for each node group and each kind of live nodes, whether it fits, or what
blocks it first. For a claim that has its devices, print them, their health, and the pods that use it. A claim that no
pod uses is explained as if a pod asked for it alone.

With -f, explain where the pods of manifests would go. It reads Pods, Deployments, StatefulSets, Jobs, ResourceClaims,
ResourceClaimTemplates, DeviceClasses and GPUPolicies, names the objects that it ignores, and creates nothing. For
defaults of the API server, such as priorities, pipe kubectl apply --dry-run=server -o yaml.

With --template, pods find only new nodes of this instance type. Without -f, it prints what such a node publishes.

Exit codes: 0 printed. 1 with -f: a pod fits on no node, and no group would grow for it. 2 there is nothing to explain,
or no answer.`

func newExplainCommand(config clientcmd.ClientConfig) *cobra.Command {
	o := options{output: terminal.Tabular}
	command := &cobra.Command{
		Use:   "explain [pod/]NAME | claim/NAME | -f FILE | --template TYPE",
		Short: "Explain why a pod or a claim waits, or where the pods of a manifest would go",
		Long:  explainLong,
		Example: "  kubectl gpu explain pod/train-0\n  kubectl gpu explain claim/train-0-gpus-x7k2p -n research -o json\n" +
			"  helm template my-chart | kubectl gpu explain -f -\n  kubectl gpu explain -f llm.yaml --template p5.48xlarge\n" +
			"  kubectl gpu explain --template p5.48xlarge -o yaml",
		RunE: func(command *cobra.Command, args []string) error {
			return o.run(command, config, newClient, args)
		},
	}
	flags := command.Flags()
	flags.StringVarP((*string)(&o.output), "output", "o", string(o.output), "how to print: table, json or yaml")
	flags.StringVar(&o.autoscaler.Namespace, "cluster-autoscaler-namespace", autoscaler.Namespace, "the namespace of Cluster Autoscaler's status")
	flags.StringVar(&o.autoscaler.Name, "cluster-autoscaler-status-name", autoscaler.StatusName, "the name of the ConfigMap with Cluster Autoscaler's status")
	flags.StringVar(&o.driver, "driver-name", slice.DefaultDriver, "the name under which Mica's driver publishes devices")
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "a file with manifests, or - for standard input; can be repeated")
	flags.StringArrayVar(&o.templates, "template", nil, "an instance type, such as p5.48xlarge; can be repeated")
	flags.BoolVar(&o.offline, "offline", false, "with --template: read no cluster; the files need the DeviceClasses and GPUPolicies, such as those of Mica's chart")
	flags.StringArrayVar(&o.startup.Keys, "startup-taint", nil, "the key of a taint that new nodes lose once they have started, as in the controller's flag; can be repeated")
	flags.StringArrayVar(&o.startup.Prefixes, "startup-taint-prefix", nil, "a prefix of keys of such taints, as in the controller's flag; can be repeated")
	return command
}

func (o options) run(command *cobra.Command, config clientcmd.ClientConfig, connect connecter, args []string) error {
	if err := o.output.Check(terminal.Tabular, terminal.JSON, terminal.YAML); err != nil {
		return err
	}
	manifest := len(o.files)+len(o.templates) > 0 || o.offline
	subject, err := explained(args, manifest)
	if err != nil {
		return err
	}
	namespace, reader, err := o.connect(config, connect)
	if err != nil {
		return err
	}
	var found result
	x := explainer{o, reader, time.Now()}
	name := types.NamespacedName{Namespace: namespace, Name: subject.name}
	switch {
	case manifest:
		found, err = x.manifest(command.Context(), namespace, command.InOrStdin())
	case subject.claim:
		found, err = x.claim(command.Context(), name)
	default:
		found, err = x.pod(command.Context(), name)
	}
	if err != nil {
		return err
	}
	printNotes(command, found.notes...)
	out := command.OutOrStdout()
	if err := o.write(out, terminal.Of(out, os.LookupEnv), found); err != nil {
		return err
	}
	if found.missing != "" {
		return negativeAnswer(found.missing)
	}
	return nil
}

// connect returns the namespace, and a reader of the cluster; nil with --offline.
func (o options) connect(config clientcmd.ClientConfig, connect connecter) (string, client.Reader, error) {
	namespace, _, err := namespaceOf(config)
	if o.offline {
		if err != nil {
			namespace = corev1.NamespaceDefault // the kubeconfig is not needed
		}
		return namespace, nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	reader, err := connect(config)
	return namespace, reader, err
}

// subject is the pod or claim to explain.
type subject struct {
	name  string
	claim bool
}

// explained parses pod/NAME and claim/NAME, as kubectl does, or pod NAME and claim NAME. A name alone is a pod's. With a
// manifest there are no arguments.
func explained(args []string, manifest bool) (subject, error) {
	if manifest && len(args) > 0 {
		return subject{}, fmt.Errorf("unexpected argument %q: give a pod, a claim, or -f and --template", strings.Join(args, " "))
	}
	if manifest {
		return subject{}, nil
	}
	text := strings.Join(args, "/")
	kind, name, named := strings.Cut(text, "/")
	claim, known := map[string]bool{
		"pod": false, "pods": false, "po": false, "claim": true, "claims": true, "resourceclaim": true, "resourceclaims": true,
	}[kind]
	switch {
	case known && name != "" && !strings.Contains(name, "/"):
		return subject{name: name, claim: claim}, nil
	case !known && !named && text != "":
		return subject{name: text}, nil
	}
	return subject{}, fmt.Errorf("cannot explain %q: give one pod or claim, as pod/NAME or claim/NAME, or a manifest by -f", strings.Join(args, " "))
}

// explainer reads what it explains.
type explainer struct {
	options
	// reader is nil with --offline.
	reader client.Reader
	now    time.Time
}

func (x explainer) pod(ctx context.Context, name types.NamespacedName) (result, error) {
	e, notes, err := x.explainOrRecall(ctx, name)
	pod := explain.NewPod(e)
	return result{value: pod, table: pod.Write, notes: notes}, err
}

// explainOrRecall explains a pod. If the user may not read the cluster, it returns the controller's last message to the
// pod, with a note.
func (x explainer) explainOrRecall(ctx context.Context, name types.NamespacedName) (reasons.Explanation, []string, error) {
	e, err := x.explainPod(ctx, name)
	if !apierrors.IsForbidden(err) {
		return e, nil, err
	}
	e, note, err := x.recall(ctx, name)
	return e, []string{note}, err
}

// explainPod plans as the controller does, and explains one pod of the plan.
func (x explainer) explainPod(ctx context.Context, name types.NamespacedName) (reasons.Explanation, error) {
	if err := x.checkPending(ctx, name); err != nil {
		return reasons.Explanation{}, err
	}
	v, err := x.look(ctx)
	if err != nil {
		return reasons.Explanation{}, err
	}
	e, known, err := reasons.Pod(ctx, scaleout.NewPlanner(v.Snapshot), name)
	if err != nil {
		return reasons.Explanation{}, fmt.Errorf("plan for the pending pods: %w", err)
	}
	if !known {
		return reasons.Explanation{}, fmt.Errorf("pod %s asks for no devices, by a claim or by an extended resource of a DeviceClass: see kubectl describe pod %s -n %s for what it waits for",
			name, name.Name, name.Namespace)
	}
	return e, nil
}

// recall returns the controller's last message to a pod, and a note that says what it leaves out.
func (x explainer) recall(ctx context.Context, name types.NamespacedName) (reasons.Explanation, string, error) {
	var pod corev1.Pod
	if err := x.reader.Get(ctx, name, &pod); err != nil {
		return reasons.Explanation{}, "", fmt.Errorf("read pod %s: %w", name, err)
	}
	e, at, known := reasons.FromCondition(&pod)
	if !known {
		return reasons.Explanation{}, "", fmt.Errorf("you may not list all objects that decide where pods go (%s), and pod %s has no condition %s yet: the controller sets it after half a minute", decisive, name, v1alpha1.ConditionScaleUp)
	}
	return e, fmt.Sprintf("you may not list all objects that decide where pods go (%s); this is the controller's message of %s, without the node groups", decisive, at.UTC().Format(time.RFC3339)), nil
}

// look reads the cluster as the controller does. If the user may not read Cluster Autoscaler's status, the status of the
// GPUNodeGroups counts. So it does for the limits of EKS.
func (x explainer) look(ctx context.Context) (*view.View, error) {
	read := view.Options{Driver: x.driver, Now: x.now, StartupTaints: x.startup}
	status, err := autoscaler.Read(ctx, x.reader, x.autoscaler)
	switch {
	case err == nil:
		read.Autoscaler = &status
	case !apierrors.IsForbidden(err):
		return nil, err
	}
	v, err := view.Read(ctx, x.reader, read)
	return v, withAdvice(err)
}

// checkPending returns an error for a pod that waits for no devices, before the whole cluster is read.
func (x explainer) checkPending(ctx context.Context, name types.NamespacedName) error {
	var pod corev1.Pod
	err := x.reader.Get(ctx, name, &pod)
	switch {
	case apierrors.IsNotFound(err):
		return missing(ctx, x.reader, podKind, "pod", name, "see kubectl get pods -n "+name.Namespace)
	case err != nil:
		return fmt.Errorf("read pod %s: %w", name, withAdvice(err))
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %s is on node %s already and waits for no devices", name, pod.Spec.NodeName)
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted and waits for no devices", name)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("pod %s has ended (%s) and waits for no devices", name, pod.Status.Phase)
	}
	return nil
}

// decisive are the objects that decide where pods go.
const decisive = "pods, nodes, daemonsets, deviceclasses, and the claims and slices of resource.k8s.io and groups of mica.gpu, in all namespaces"

// withAdvice adds what to do.
func withAdvice(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: explain needs the right to list %s", err, decisive)
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%w: install Mica's chart, which brings the kinds", err)
	}
	return err
}
