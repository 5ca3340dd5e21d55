package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout"
	reasons "github.com/mica-gpu/mica/pkg/scaleout/explain"
	"github.com/mica-gpu/mica/test/fixture"
)

var now = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

// execute runs a command line.
func execute(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	command := newCommand()
	command.SetArgs(append([]string{}, arguments...))
	command.SetOut(&out)
	command.SetErr(io.Discard)
	err := command.ExecuteContext(t.Context())
	return out.String(), err
}

func TestBadInput(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, tc := range map[string]struct {
		arguments []string
		want      []string
	}{
		"a pod and a file": {[]string{"explain", "pod/a", "-f", "a.yaml"}, []string{"unexpected argument", "pod/a"}},
		"only offline":     {[]string{"explain", "--offline"}, []string{"--offline needs --template"}},
		"a pod's part":     {[]string{"explain", "pod/a/b"}, []string{"pod/NAME or claim/NAME", "pod/a/b"}},
		"a format":         {[]string{"explain", "pod/a", "-o", "xml"}, []string{"table, json, yaml", "xml"}},
		"no kubeconfig":    {[]string{"explain", "pod/a", "--kubeconfig", missing}, []string{"kubeconfig", missing}},
		"an unknown flag":  {[]string{"explain", "pod/a", "--wide"}, []string{"unknown flag: --wide", "kubectl gpu explain --help"}},
		"no cluster":       {[]string{"list"}, []string{"no cluster is known", "--kubeconfig"}},
		"another context":  {[]string{"top", "--kubeconfig", kubeconfigOf(t, "prod"), "--context", "prd"}, []string{"it has prod", "prd"}},
		"what is examined": {[]string{"doctor", "node/n1"}, []string{"doctor takes no arguments", "node/n1"}},
		"no such command":  {[]string{"describe"}, []string{"describe"}},
		"version of a pod": {[]string{"version", "pod/a"}, []string{"pod/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", os.DevNull)
			_, err := execute(t, tc.arguments...)
			fixture.Sentence(t, err, tc.want...)
		})
	}
}

// kubeconfigOf writes a kubeconfig with a context of this name.
func kubeconfigOf(t *testing.T, context string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: "https://127.0.0.1:1"}},
		Contexts: map[string]*clientcmdapi.Context{context: {Cluster: "c"}}, CurrentContext: context,
	}
	if err := clientcmd.WriteToFile(config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestVersionIsPrinted(t *testing.T) {
	out, err := execute(t, "version")
	if err != nil || strings.TrimSpace(out) == "" {
		t.Errorf("got %q, %v", out, err)
	}
}

// cluster reads the objects of testdata/cluster.yaml.
func cluster(t *testing.T, failures interceptor.Funcs) client.WithWatch {
	t.Helper()
	return clusterOf(t, "testdata/cluster.yaml").WithInterceptorFuncs(failures).Build()
}

// clusterOf has the objects of files.
func clusterOf(t *testing.T, files ...string) *fake.ClientBuilder {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for _, file := range files {
		for _, document := range documents(t, file) {
			builder.WithObjects(decodeStrict(t, document))
		}
	}
	return builder
}

var defaults = options{driver: "gpu.nvidia.com", autoscaler: types.NamespacedName{Namespace: "kube-system", Name: "cluster-autoscaler-status"}}

func ask(t *testing.T, reader client.Reader, pod string) (reasons.Explanation, error) {
	t.Helper()
	return explainer{defaults, reader, now}.explainPod(t.Context(), types.NamespacedName{Namespace: "research", Name: pod})
}

func TestExplainReadsTheCluster(t *testing.T) {
	big := types.NamespacedName{Namespace: "research", Name: "big"}
	found, err := explainer{defaults, cluster(t, interceptor.Funcs{}), now}.pod(t.Context(), big)
	if err != nil {
		t.Fatal(err)
	}
	goldenAnswer(t, "big", found, 110)
}

// goldenAnswer compares an answer with its golden files, for people and for programs.
func goldenAnswer(t *testing.T, name string, found result, widths ...int) {
	t.Helper()
	var table, program bytes.Buffer
	for i, width := range widths {
		if i > 0 {
			fmt.Fprintf(&table, "--- %d\n", width)
		}
		if err := (options{output: "table"}).write(&table, terminal.Screen{Width: width}, found); err != nil {
			t.Fatal(err)
		}
	}
	if err := (options{output: "json"}).write(&program, terminal.Screen{}, found); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(program.Bytes()) {
		t.Error("the JSON is none")
	}
	fixture.Golden(t, name+".table", table.String())
	fixture.Golden(t, name+".json", program.String())
}

// The plugin explains as the controller does, which reads Cluster Autoscaler's backoffs.
func TestExplainReadsWhatClusterAutoscalerSays(t *testing.T) {
	status := "time: " + now.Format("2006-01-02 15:04:05 -0700 MST") + `
nodeGroups:
- {name: h100, health: {maxSize: 3}, scaleUp: {status: Backoff, backoffInfo: {errorCode: OutOfCapacity, errorMessage: no machine is left}}}
`
	for name, test := range map[string]struct {
		failure error
		want    scaleout.Outcome
		says    string
	}{
		"its status":      {nil, scaleout.Blocked, "no machine is left"},
		"no status":       {apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "x"), scaleout.NeedsNode, "group h100"},
		"no right to it":  {apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "x", nil), scaleout.NeedsNode, "group h100"},
		"another failure": {errors.New("connection refused"), "", "kube-system/cluster-autoscaler-status"},
	} {
		t.Run(name, func(t *testing.T) {
			reader := cluster(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				written, is := o.(*corev1.ConfigMap)
				if !is {
					return c.Get(ctx, key, o, opts...)
				}
				written.Data = map[string]string{"status": status}
				return test.failure
			}})
			e, err := ask(t, reader, "grows")
			if test.want == "" {
				fixture.Sentence(t, err, test.says)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if e.Outcome != test.want || !strings.Contains(e.Summary, test.says) {
				t.Errorf("%s: %q, want %s with %q", e.Outcome, e.Summary, test.want, test.says)
			}
		})
	}
}

func TestPodsThatNeedNoExplanation(t *testing.T) {
	for pod, want := range map[string][]string{
		"missing": {"no pod missing", "namespace research", "-n"},
		"placed":  {"pod research/placed", "on node n1"},
		"done":    {"pod research/done", "Succeeded"},
		"no-gpus": {"pod research/no-gpus", "no devices", "kubectl describe"},
	} {
		t.Run(pod, func(t *testing.T) {
			_, err := ask(t, cluster(t, interceptor.Funcs{}), pod)
			fixture.Sentence(t, err, want...)
		})
	}
}

func TestClusterThatCannotBeRead(t *testing.T) {
	groups := schema.GroupResource{Group: "mica.gpu", Resource: "gpunodegroups"}
	for name, tc := range map[string]struct {
		failure error
		want    []string
	}{
		"no right":   {apierrors.NewForbidden(groups, "", errors.New("no")), []string{"the right to list"}},
		"no chart":   {&meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "mica.gpu", Kind: "GPUNodeGroup"}}, []string{"install Mica's chart"}},
		"no network": {errors.New("connection refused"), []string{"connection refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			reader := cluster(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				switch list.(type) {
				case *corev1.PodList, *corev1.NodeList, *resourceapi.ResourceSliceList:
					return c.List(ctx, list, opts...)
				}
				return tc.failure
			}})
			_, err := ask(t, reader, "big")
			fixture.Sentence(t, err, append(tc.want, "list")...)
		})
	}
}

// A tenant with few rights gets the controller's last message to the pod.
func TestExplainForWhoMayNotSeeTheCluster(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	refusing := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		return apierrors.NewForbidden(nodes, "", errors.New("no"))
	}}
	if _, err := ask(t, cluster(t, refusing), "big"); !apierrors.IsForbidden(err) {
		t.Fatalf("a tenant is refused with %v", err)
	}
	big := types.NamespacedName{Namespace: "research", Name: "big"}
	_, _, err := explainer{reader: cluster(t, refusing)}.recall(t.Context(), big)
	fixture.Sentence(t, err, "you may not list", "pod research/big has no condition mica.gpu/ScaleUp yet")
	withCondition := interceptor.Funcs{List: refusing.List, Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		err := c.Get(ctx, key, o, opts...)
		if pod, is := o.(*corev1.Pod); is && err == nil {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
				Type: "mica.gpu/ScaleUp", Status: corev1.ConditionTrue, Reason: "GPUScaleUpPlanned", Message: "needs a new node of group h100", LastProbeTime: metav1.NewTime(now),
			})
		}
		return err
	}}
	e, note, err := explainer{reader: cluster(t, withCondition)}.recall(t.Context(), big)
	if err != nil || e.Outcome != scaleout.NeedsNode || e.Summary != "needs a new node of group h100" {
		t.Errorf("recalled %+v, %v", e, err)
	}
	fixture.Sentence(t, errors.New(note), "you may not list", "of 2026-10-01T12:00:00Z")
}
