package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/cordon"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
)

// cordonOptions are the flags of cordon and uncordon.
type cordonOptions struct {
	driver, effect, reason string
	dryRun                 bool
	output                 terminal.Format
}

const cordonLong = `Keep new claims from a GPU in all of its shapes, or from all GPUs of a node, by DeviceTaintRules. Pods
that have it keep it, unless --effect is NoExecute. The node still takes other pods.

A rule names one device, so a GPU with partitions gets a rule per partition and share. If a GPUPolicy
offers other shapes of a cordoned GPU later, cordon it again.

--dry-run creates nothing and prints which claims and pods have the GPU now. --effect None creates rules
that keep no claim away: the API server reports what NoExecute would do.

It needs Kubernetes 1.37 or newer, and the ClusterRole mica-cordon-gpus of Mica's chart.

Exit codes: 0 done, 2 nothing or not everything was done.`

func newCordonCommand(config clientcmd.ClientConfig, connect connecter) *cobra.Command {
	o := cordonOptions{output: terminal.Tabular}
	command := &cobra.Command{
		Use:   "cordon gpu NODE/GPU|UUID | node NODE",
		Short: "Keep new claims from a GPU, or from all GPUs of a node",
		Long:  cordonLong,
		Example: "  kubectl gpu cordon gpu ip-10-0-0-1/gpu-3 --reason 'XID 79, ticket 4711'\n  kubectl gpu cordon gpu GPU-7d8c... --effect NoExecute --dry-run\n" +
			"  kubectl gpu cordon node ip-10-0-0-1\n  kubectl gpu uncordon node ip-10-0-0-1",
		RunE: func(command *cobra.Command, args []string) error {
			kind, name, err := cordoned("cordon", args)
			if err != nil {
				return err
			}
			effect, err := cordon.ParseEffect(o.effect)
			if err != nil {
				return err
			}
			if err := o.output.Check(terminal.Tabular, terminal.JSON, terminal.YAML); err != nil {
				return err
			}
			connected, err := connect(config)
			if err != nil {
				return err
			}
			return o.cordon(command.Context(), connected, command.OutOrStdout(), kind, name, effect)
		},
	}
	o.addFlags(command)
	command.Flags().StringVar(&o.effect, "effect", string(resourceapi.DeviceTaintEffectNoSchedule), "NoSchedule keeps new claims away, NoExecute evicts pods as well, None only reports in the rules' status what NoExecute would do")
	command.Flags().StringVar(&o.reason, "reason", "", "why, in an annotation of the rules")
	command.Flags().StringVarP((*string)(&o.output), "output", "o", string(o.output), "how to print: table, or json or yaml for the rules")
	return command
}

func newUncordonCommand(config clientcmd.ClientConfig, connect connecter) *cobra.Command {
	var o cordonOptions
	command := &cobra.Command{
		Use:     "uncordon gpu NODE/GPU|UUID | node NODE",
		Short:   "Let new claims have a GPU, or all GPUs of a node, again",
		Long:    "Delete the DeviceTaintRules that kubectl gpu cordon has made, and no others. Taints that the driver publishes on sick\nGPUs stay.\n\nExit codes: 0 done, also if nothing was cordoned; 2 nothing or not everything was done.",
		Example: "  kubectl gpu uncordon gpu ip-10-0-0-1/gpu-3\n  kubectl gpu uncordon node ip-10-0-0-1 --dry-run",
		RunE: func(command *cobra.Command, args []string) error {
			kind, name, err := cordoned("uncordon", args)
			if err != nil {
				return err
			}
			connected, err := connect(config)
			if err != nil {
				return err
			}
			return o.uncordon(command.Context(), connected, command.OutOrStdout(), kind, name)
		},
	}
	o.addFlags(command)
	return command
}

func (o *cordonOptions) addFlags(command *cobra.Command) {
	command.Flags().BoolVar(&o.dryRun, "dry-run", false, "change nothing, and print what would be done")
	command.Flags().StringVar(&o.driver, "driver-name", slice.DefaultDriver, "the name under which the driver publishes devices")
}

// cordoned parses gpu NODE/GPU, gpu UUID and node NODE.
func cordoned(verb string, args []string) (kind, name string, err error) {
	if len(args) == 2 && (args[0] == cordon.OfGPU || args[0] == cordon.OfNode) && args[1] != "" {
		return args[0], args[1], nil
	}
	return "", "", fmt.Errorf("cannot %s %q: give gpu NODE/GPU, gpu UUID or node NODE, such as gpu n1/gpu-0", verb, strings.Join(args, " "))
}

func (o *cordonOptions) cordon(ctx context.Context, cluster client.WithWatch, out io.Writer, kind, name string, effect resourceapi.DeviceTaintEffect) error {
	scope := fleet.Scope{Driver: o.driver}
	if node := nodeOf(kind, name); node != "" {
		scope.Nodes = []string{node}
	}
	seen, err := fleet.Read(ctx, cluster, scope)
	if err != nil {
		return err
	}
	if seen.SlicesHidden {
		return errors.New("you may not list ResourceSlices, which have the devices of a GPU: ask for the ClusterRole mica-cordon-gpus of Mica's chart")
	}
	find := cordon.FindNode
	if kind == cordon.OfGPU {
		find = cordon.FindGPU
	}
	target, err := find(seen.GPUs(), name)
	if err != nil {
		return err
	}
	rules := target.Rules(effect, o.reason)
	for i := range rules {
		if o.dryRun {
			break
		}
		if err := apply(ctx, cluster, &rules[i]); err != nil {
			return fmt.Errorf("%d of %d DeviceTaintRules were written: %w", i, len(rules), err)
		}
	}
	if o.output != terminal.Tabular {
		return o.output.Encode(out, map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": rules})
	}
	report := cordon.Report{Target: target, Effect: effect, Rules: rules, DryRun: o.dryRun, NotSeen: seen.Unseen}
	return report.Write(out, terminal.Of(out, os.LookupEnv))
}

// nodeOf is the node of the arguments; empty with a UUID.
func nodeOf(kind, name string) string {
	node, _, isGPU := strings.Cut(name, "/")
	if kind == cordon.OfGPU && !isGPU {
		return ""
	}
	return node
}

// apply creates a rule, or updates that of an earlier cordon.
func apply(ctx context.Context, cluster client.Client, rule *resourceapi.DeviceTaintRule) error {
	wanted := rule.DeepCopy()
	err := cluster.Create(ctx, rule)
	if apierrors.IsAlreadyExists(err) {
		var existing resourceapi.DeviceTaintRule
		if err = cluster.Get(ctx, client.ObjectKeyFromObject(wanted), &existing); err == nil {
			if !cordon.Ours(&existing) {
				return fmt.Errorf("DeviceTaintRule %s exists and was not made by kubectl gpu cordon: delete it if it is not needed", existing.Name)
			}
			if was := existing.Spec.Taint.Effect; wanted.Spec.Taint.Effect == resourceapi.DeviceTaintEffectNone && was != wanted.Spec.Taint.Effect {
				return fmt.Errorf("DeviceTaintRule %s has the effect %s, and None would end the cordon: use --dry-run to see which pods NoExecute would evict, or uncordon it first", existing.Name, was)
			}
			wanted.ResourceVersion = existing.ResourceVersion
			*rule = *wanted
			err = cluster.Update(ctx, rule)
		}
	}
	rule.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("DeviceTaintRule")) // the client leaves it out
	return ruleError("write", wanted.Name, err)
}

// ruleError adds what to do about an error of the API server.
func ruleError(verb, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return errors.New("the API server has no DeviceTaintRule of resource.k8s.io/v1: upgrade to Kubernetes 1.37 or newer, or use kubectl cordon for the node")
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you may not %s DeviceTaintRules (%w): ask for the ClusterRole mica-cordon-gpus of Mica's chart", verb, err)
	}
	return fmt.Errorf("%s DeviceTaintRule %s: %w", verb, name, err)
}

func (o *cordonOptions) uncordon(ctx context.Context, cluster client.WithWatch, out io.Writer, kind, name string) error {
	var all resourceapi.DeviceTaintRuleList
	if err := cluster.List(ctx, &all, client.HasLabels{cordon.Label}); err != nil {
		return ruleError("list", "of cordons", err)
	}
	rules := cordon.OfDriver(all.Items, o.driver)
	var found cordon.Found
	if kind == cordon.OfNode {
		found = cordon.ForNode(rules, name)
	} else {
		found = cordon.ForGPU(rules, name)
	}
	for i := range found.Rules {
		if o.dryRun {
			break
		}
		if err := client.IgnoreNotFound(cluster.Delete(ctx, &found.Rules[i])); err != nil {
			return fmt.Errorf("%d of %d DeviceTaintRules were deleted: %w", i, len(found.Rules), ruleError("delete", found.Rules[i].Name, err))
		}
	}
	screen := terminal.Of(out, os.LookupEnv)
	for _, line := range screen.Lines(found.Sentence(kind, name, o.dryRun), 0) {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}
