package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/pkg/kubectl/cordon"
	"github.com/mica-gpu/mica/test/fixture"
)

// sliced is the cluster of testdata, with the fields of slices that the API server can select by.
func sliced(t *testing.T) *fake.ClientBuilder {
	t.Helper()
	return clusterOf(t, "testdata/cluster.yaml", "testdata/claims.yaml").
		WithIndex(&resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorDriver, func(o client.Object) []string {
			return []string{o.(*resourceapi.ResourceSlice).Spec.Driver}
		}).
		WithIndex(&resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorNodeName, func(o client.Object) []string {
			return []string{*o.(*resourceapi.ResourceSlice).Spec.NodeName}
		})
}

// cordons runs cordon or uncordon in a cluster.
func cordons(t *testing.T, cluster client.WithWatch, verb string, arguments ...string) (string, error) {
	t.Helper()
	connect := func(clientcmd.ClientConfig) (client.WithWatch, error) { return cluster, nil }
	command := newCordonCommand(kubeconfig("research"), connect)
	if verb == "uncordon" {
		command = newUncordonCommand(kubeconfig("research"), connect)
	}
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetArgs(append([]string{}, arguments...))
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetErr(io.Discard)
	err := command.ExecuteContext(t.Context())
	return out.String(), err
}

func rulesOf(t *testing.T, cluster client.Client) []resourceapi.DeviceTaintRule {
	t.Helper()
	var all resourceapi.DeviceTaintRuleList
	if err := cluster.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	return all.Items
}

func TestCordonAndUncordon(t *testing.T) {
	cluster := sliced(t).Build()
	if out, err := cordons(t, cluster, "cordon", "gpu", "n1/gpu-0", "--dry-run"); err != nil || len(rulesOf(t, cluster)) > 0 || !strings.Contains(out, "Nothing was created") {
		t.Errorf("a dry run: %v, %v: %s", err, rulesOf(t, cluster), out)
	}
	if out, err := cordons(t, cluster, "cordon", "gpu", "n1/gpu-0", "--reason", "noisy fan"); err != nil || !strings.Contains(out, "GPU gpu-0 of node n1 gets no new claims") {
		t.Errorf("%v: %s", err, out)
	}
	// A second cordon updates the effect.
	if _, err := cordons(t, cluster, "cordon", "gpu", "n1/gpu-0", "--effect", "NoExecute"); err != nil {
		t.Error(err)
	}
	rules := rulesOf(t, cluster)
	if len(rules) != 1 || rules[0].Spec.Taint.Effect != "NoExecute" || !cordon.Ours(&rules[0]) {
		t.Fatalf("got %+v", rules)
	}
	if _, err := cordons(t, cluster, "cordon", "node", "n1"); err != nil || len(rulesOf(t, cluster)) != 2 {
		t.Errorf("%v: %v", err, rulesOf(t, cluster))
	}
	if out, err := cordons(t, cluster, "uncordon", "node", "n1", "--dry-run"); err != nil || len(rulesOf(t, cluster)) != 2 || !strings.Contains(out, "would be") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := cordons(t, cluster, "uncordon", "node", "n1"); err != nil || len(rulesOf(t, cluster)) != 1 || !strings.Contains(out, "n1/gpu-0") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := cordons(t, cluster, "uncordon", "gpu", "n1/gpu-0"); err != nil || len(rulesOf(t, cluster)) != 0 {
		t.Errorf("%v: %v", err, rulesOf(t, cluster))
	}
	if out, err := cordons(t, cluster, "uncordon", "gpu", "n1/gpu-0"); err != nil || !strings.Contains(out, "was not cordoned") {
		t.Errorf("%v: %s", err, out)
	}
	out, err := cordons(t, cluster, "cordon", "gpu", "n1/gpu-0", "--dry-run", "-o", "yaml")
	if err != nil || !strings.Contains(out, "kind: DeviceTaintRule") || !strings.Contains(out, "device: gpu-0") {
		t.Errorf("%v: %s", err, out)
	}
}

// Rules of other drivers stay, and --effect None does not end a cordon.
func TestCordonsThatStay(t *testing.T) {
	cluster := sliced(t).Build()
	for _, arguments := range [][]string{{"node", "n1"}, {"gpu", "n1/gpu-0"}} {
		if _, err := cordons(t, cluster, "cordon", arguments...); err != nil {
			t.Fatal(err)
		}
		if out, err := cordons(t, cluster, "uncordon", append(arguments, "--driver-name", "gpu.example.com")...); err != nil || !strings.Contains(out, "was not cordoned") {
			t.Errorf("%v: %s", err, out)
		}
		_, err := cordons(t, cluster, "cordon", append(arguments, "--effect", "None")...)
		fixture.Sentence(t, err, "effect NoSchedule", "--dry-run", "uncordon")
	}
	for _, rule := range rulesOf(t, cluster) {
		if rule.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNoSchedule {
			t.Errorf("the cordon %s has ended: %+v", rule.Name, rule.Spec)
		}
	}
}

// A node's slices are 170 kB with eight H100: those of other nodes are not asked for.
func TestCordonReadsOneNodesSlices(t *testing.T) {
	cluster := sliced(t).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			asked := (&client.ListOptions{}).ApplyOptions(options)
			if _, is := list.(*resourceapi.ResourceSliceList); is && !strings.Contains(asked.FieldSelector.String(), "spec.nodeName=n1") {
				t.Errorf("slices are selected by %s", asked.FieldSelector)
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	for _, arguments := range [][]string{{"node", "n1"}, {"gpu", "n1/gpu-0"}} {
		if _, err := cordons(t, cluster, "cordon", arguments...); err != nil {
			t.Error(err)
		}
	}
}

func TestCordonRefuses(t *testing.T) {
	rules := schema.GroupResource{Group: "resource.k8s.io", Resource: "devicetaintrules"}
	for name, tc := range map[string]struct {
		arguments []string
		failure   error
		want      []string
	}{
		"nothing":        {nil, nil, []string{"cannot cordon", "gpu NODE/GPU"}},
		"a pod":          {[]string{"pod", "a"}, nil, []string{"cannot cordon", "pod a"}},
		"an effect":      {[]string{"node", "n1", "--effect", "Evict"}, nil, []string{"Evict", "NoExecute"}},
		"a format":       {[]string{"node", "n1", "-o", "wide"}, nil, []string{"wide"}},
		"a GPU":          {[]string{"gpu", "n1/gpu-9"}, nil, []string{"gpu-9", "gpu-0"}},
		"an old server":  {[]string{"node", "n1"}, &meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "DeviceTaintRule"}}, []string{"Kubernetes 1.37"}},
		"no right":       {[]string{"node", "n1"}, apierrors.NewForbidden(rules, "x", nil), []string{"may not write", "cordon-gpus"}},
		"another's rule": {[]string{"node", "n1"}, apierrors.NewAlreadyExists(rules, "x"), []string{"not made by kubectl gpu cordon"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := sliced(t).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
					return tc.failure
				},
				Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
					object.SetName(key.Name)
					return nil
				},
			}).Build()
			_, err := cordons(t, cluster, "cordon", tc.arguments...)
			fixture.Sentence(t, err, tc.want...)
		})
	}
	_, err := cordons(t, sliced(t).Build(), "uncordon", "gpu")
	fixture.Sentence(t, err, "cannot uncordon")
}
