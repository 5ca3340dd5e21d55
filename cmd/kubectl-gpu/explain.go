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
	"github.com/mica-gpu/mica/pkg/kubectl/allocation"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/explain"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/pkg/slice"
)

// options of explain.
type options struct {
	driver string
	// autoscaler is the ConfigMap in which Cluster Autoscaler writes its status.
	autoscaler types.NamespacedName
	output     terminal.Format
}

// findings are what was found out: a value for programs, a table for people, and notes on what was not seen.
type findings struct {
	value any
	table func(io.Writer, terminal.Screen) error
	notes []string
}

func (o options) write(w io.Writer, screen terminal.Screen, f findings) error {
	if o.output == terminal.Tabular {
		return f.table(w, screen)
	}
	return o.output.Encode(w, f.value)
}

const explainLong = `Say why a pod or a claim waits: for each node group and each kind of live nodes, whether it fits, or what
blocks it first. Of a claim that waits for nothing, say which devices it has, how they are, and which pods
use it.

A claim is judged by the pod that waits with it. One that no pod uses is judged as if a pod asked for it and
for nothing else.

Exit codes: 0 printed, 2 there is nothing to explain, or no answer.`

func newExplainCommand(config clientcmd.ClientConfig) *cobra.Command {
	var o options
	var startup startupTaints
	command := &cobra.Command{
		Use:     "explain [pod/]NAME | claim/NAME",
		Short:   "Say why a pod or a claim waits, or which devices a claim has",
		Long:    explainLong,
		Example: "  kubectl gpu explain pod/train-0\n  kubectl gpu explain claim/train-0-gpus-x7k2p\n  kubectl gpu explain pod/train-0 -n research -o json",
		RunE: func(command *cobra.Command, args []string) error {
			startup.declare()
			return run(command, config, o, args)
		},
	}
	command.Flags().StringVarP((*string)(&o.output), "output", "o", string(terminal.Tabular), "how to print: table, json or yaml")
	o.addAutoscalerFlags(command)
	command.Flags().StringVar(&o.driver, "driver-name", slice.DefaultDriver, "the name under which Mica's driver publishes devices")
	startup.addFlags(command)
	return command
}

func (o *options) addAutoscalerFlags(command *cobra.Command) {
	command.Flags().StringVar(&o.autoscaler.Namespace, "cluster-autoscaler-namespace", autoscaler.Namespace, "the namespace of Cluster Autoscaler's status")
	command.Flags().StringVar(&o.autoscaler.Name, "cluster-autoscaler-status-name", autoscaler.StatusName, "the name of the ConfigMap with Cluster Autoscaler's status")
}

func run(command *cobra.Command, config clientcmd.ClientConfig, o options, args []string) error {
	if err := o.output.Check(terminal.Tabular, terminal.JSON, terminal.YAML); err != nil {
		return err
	}
	named, err := explained(args)
	if err != nil {
		return err
	}
	namespace, _, err := namespaceOf(config)
	if err != nil {
		return err
	}
	reader, err := newReader(config)
	if err != nil {
		return err
	}
	name := types.NamespacedName{Namespace: namespace, Name: named.name}
	say := podAnswer
	if named.claim {
		say = claimAnswer
	}
	found, err := say(command.Context(), reader, name, o, time.Now())
	if err != nil {
		return err
	}
	for _, note := range found.notes {
		command.PrintErrln("note:", note)
	}
	out := command.OutOrStdout()
	return o.write(out, terminal.Of(out, os.LookupEnv), found)
}

// subject is what is to be explained.
type subject struct {
	name  string
	claim bool
}

// explained takes pod/NAME and claim/NAME, as kubectl does, or pod NAME and claim NAME. A name alone is a pod's.
func explained(args []string) (subject, error) {
	kind, name, named := strings.Cut(strings.Join(args, "/"), "/")
	if strings.Contains(name, "/") {
		kind = ""
	}
	switch kind {
	case "pod", "pods", "po":
		if name != "" {
			return subject{name: name}, nil
		}
	case "claim", "claims", "resourceclaim", "resourceclaims":
		if name != "" {
			return subject{name: name, claim: true}, nil
		}
	case "":
	default:
		if !named {
			return subject{name: kind}, nil
		}
	}
	return subject{}, fmt.Errorf("explain wants one pod or claim, as pod/NAME or claim/NAME, and was given %q", strings.Join(args, " "))
}

func podAnswer(ctx context.Context, reader client.Reader, name types.NamespacedName, o options, now time.Time) (findings, error) {
	e, notes, err := explainOrTold(ctx, reader, name, o, now)
	return findings{explain.Value(e), func(w io.Writer, s terminal.Screen) error { return explain.Table(w, s, e) }, notes}, err
}

func claimAnswer(ctx context.Context, reader client.Reader, name types.NamespacedName, o options, now time.Time) (findings, error) {
	c, notes, err := explainClaim(ctx, reader, name, o, now)
	return findings{c, func(w io.Writer, s terminal.Screen) error { return allocation.Table(w, s, c) }, notes}, err
}

// explainOrTold explains a pod, with a note where that is not from what decides, but from what the
// controller has told the pod.
func explainOrTold(ctx context.Context, reader client.Reader, name types.NamespacedName, o options, now time.Time) (explain.Explanation, []string, error) {
	e, err := explainPod(ctx, reader, name, o, now)
	if !apierrors.IsForbidden(err) {
		return e, nil, err
	}
	e, note, err := told(ctx, reader, name)
	return e, []string{note}, err
}

// explainPod plans as the controller does, and looks at one pod.
func explainPod(ctx context.Context, reader client.Reader, name types.NamespacedName, o options, now time.Time) (explain.Explanation, error) {
	if err := waits(ctx, reader, name); err != nil {
		return explain.Explanation{}, err
	}
	v, err := look(ctx, reader, o, now)
	if err != nil {
		return explain.Explanation{}, err
	}
	e, known, err := explain.Pod(ctx, scaleout.NewPlanner(v.Snapshot), name)
	if err != nil {
		return explain.Explanation{}, fmt.Errorf("plan for the pending pods: %w", err)
	}
	if !known {
		return explain.Explanation{}, fmt.Errorf("pod %s asks for no devices, by a claim or by an extended resource of a DeviceClass: see kubectl describe pod %s -n %s for what it waits for",
			name, name.Name, name.Namespace)
	}
	return e, nil
}

// told is for who may not read the cluster: what the controller has told the pod, and a sentence about
// what that leaves out.
func told(ctx context.Context, reader client.Reader, name types.NamespacedName) (explain.Explanation, string, error) {
	var pod corev1.Pod
	if err := reader.Get(ctx, name, &pod); err != nil {
		return explain.Explanation{}, "", fmt.Errorf("read pod %s: %w", name, err)
	}
	explained, at, known := explain.Told(&pod)
	if !known {
		return explain.Explanation{}, "", fmt.Errorf("you may not list what decides where pods go (%s), and Mica's controller has told pod %s nothing yet: it does so after half a minute, in the pod's condition %s", whatDecides, name, v1alpha1.ConditionScaleUp)
	}
	return explained, fmt.Sprintf("you may not list what decides where pods go (%s), so this is what Mica's controller told the pod at %s, without what each node group lacks", whatDecides, at.UTC().Format(time.RFC3339)), nil
}

// look reads the cluster as the controller does. Who may not read the status of Cluster Autoscaler
// is told what the controller has last seen of it, and so is everybody of EKS's limits.
func look(ctx context.Context, reader client.Reader, o options, now time.Time) (*view.View, error) {
	read := view.Options{Driver: o.driver, Now: now}
	said, err := autoscaler.Read(ctx, reader, o.autoscaler)
	switch {
	case err == nil:
		read.Autoscaler = &said
	case !apierrors.IsForbidden(err):
		return nil, err
	}
	v, err := view.Read(ctx, reader, read)
	return v, advised(err)
}

// waits looks whether there is anything to explain, before all of the cluster is read.
func waits(ctx context.Context, reader client.Reader, name types.NamespacedName) error {
	var pod corev1.Pod
	err := reader.Get(ctx, name, &pod)
	switch {
	case apierrors.IsNotFound(err):
		return missing(ctx, reader, podKind, "pod", name, "see kubectl get pods -n "+name.Namespace)
	case err != nil:
		return fmt.Errorf("read pod %s: %w", name, advised(err))
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %s is on node %s already and waits for no devices", name, pod.Spec.NodeName)
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted and waits for no devices", name)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("pod %s has ended (%s) and waits for no devices", name, pod.Status.Phase)
	}
	return nil
}

// whatDecides has to be listed to plan as the controller does.
const whatDecides = "pods, nodes, daemonsets, deviceclasses, and the claims and slices of resource.k8s.io and groups of mica.gpu, in all namespaces"

// advised adds what to do.
func advised(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: explaining takes the right to list what decides where pods go, which are %s", err, whatDecides)
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%w: install Mica's chart, which brings the kinds", err)
	}
	return err
}
