package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/pkg/kubectl/simulate"
	"github.com/mica-gpu/mica/test/fixture"
)

// simulated is what simulate prints of manifests from standard input, in the cluster of testdata.
func simulated(t *testing.T, manifests string, arguments ...string) (string, error) {
	t.Helper()
	reader := cluster(t, interceptor.Funcs{})
	command := newSimulateCommand(kubeconfig("research"), func(clientcmd.ClientConfig) (client.Reader, error) { return reader, nil })
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetArgs(append([]string{"-f", "-"}, arguments...))
	command.SetIn(strings.NewReader(manifests))
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetErr(io.Discard)
	err := command.ExecuteContext(t.Context())
	return out.String(), err
}

// simulatedPod names a claim template, of those in the cluster.
func simulatedPod(name, template string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  containers: [{name: main, image: x}]\n" +
		"  resourceClaims: [{name: gpus, resourceClaimTemplateName: " + template + "}]\n---\n"
}

// The cluster's claim templates, nodes, groups and waiting pods count.
func TestSimulateOnACluster(t *testing.T) {
	out, err := simulated(t, simulatedPod("new", "eighty"), "-o", "json")
	if exitCode(err) != exitNo {
		t.Errorf("exit code %d (%v), want %d, as no group has such GPUs", exitCode(err), err, exitNo)
	}
	var result simulate.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatal(err)
	}
	if len(result.Pods) != 1 || result.Pods[0].Namespace != "research" || result.Fits {
		t.Errorf("got %s", out)
	}
	if said := result.Pods[0].Why; !strings.Contains(said, "memory") {
		t.Errorf("the reason %q is not that of explain", said)
	}
}

func TestSimulateTellsScriptsWhetherAllFits(t *testing.T) {
	out, err := simulated(t, simulatedPod("new", "small")+
		"apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: small}\n"+
		"spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}\n", "--template", "g5.xlarge=1")
	if err != nil || !strings.Contains(out, "g5.xlarge-1") || !strings.Contains(out, "Everything fits.") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestSimulateRefuses(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(simulatedPod("a", "b")), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := simulatedPod("new", "eighty")
	for name, tc := range map[string]struct {
		manifests string
		arguments []string
		want      []string
	}{
		"an argument":           {pod, []string{"pod/a"}, []string{"-f", "pod/a"}},
		"a format":              {pod, []string{"-o", "csv"}, []string{"csv", "table, wide"}},
		"no file":               {pod, []string{"-f", "/nowhere/pods.yaml"}, []string{"/nowhere/pods.yaml"}},
		"nothing in it":         {"", nil, []string{"no pod"}},
		"an unknown machine":    {pod, []string{"--template", "p5.47xlarge"}, []string{"--template", "did you mean", "p5.48xlarge"}},
		"a number":              {pod, []string{"--template", "p5.48xlarge=x"}, []string{"--template", "TYPE=COUNT"}},
		"a policy for nothing":  {pod, []string{"--policy", policy}, []string{"--policy", "--template"}},
		"no policy":             {pod, []string{"--policy", policy, "--template", "g5.xlarge"}, []string{"GPUPolicy"}},
		"a pod that exists":     {simulatedPod("big", "eighty"), nil, []string{"research/big exists", "explain pod/big"}},
		"a priority of nowhere": {strings.Replace(pod, "spec:\n", "spec:\n  priorityClassName: urgent\n", 1), nil, []string{"PriorityClass urgent", "create it"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := simulated(t, tc.manifests, tc.arguments...)
			fixture.Sentence(t, err, tc.want...)
			if code := exitCode(err); code != exitFailed {
				t.Errorf("exit code %d, want %d", code, exitFailed)
			}
		})
	}
}

func TestSlices(t *testing.T) {
	out, err := execute(t, "slices", "p5.48xlarge")
	if err != nil || !strings.Contains(out, "NVIDIA H100 80GB HBM3") || !strings.Contains(out, "GPUPolicy mica-default") {
		t.Errorf("%v: %s", err, out)
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	text := "apiVersion: mica.gpu/v1alpha1\nkind: GPUPolicy\nmetadata: {name: whole}\nspec: {shapes: {whole: {}}}\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = execute(t, "slices", "p5.48xlarge", "--policy", policy, "--driver-version", "580.95.05", "-o", "yaml")
	if err != nil || strings.Contains(out, "timeslice") || !strings.Contains(out, "version: 580.95.5") && !strings.Contains(out, "580.95.05") {
		t.Errorf("%v: %s", err, out)
	}
	for want, arguments := range map[string][]string{
		"one instance type": {"slices"}, "did you mean g5.xlarge": {"slices", "g5.xlarg"},
		"families g4dn": {"slices", "x1"}, "not predicted": {"slices", "p6-b300.48xlarge"}, "no NVIDIA GPU": {"slices", "trn1.2xlarge"},
	} {
		if _, err := execute(t, arguments...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", arguments, err, want)
		}
	}
}
