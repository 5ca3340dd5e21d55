package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/pkg/kubectl/explain"
	"github.com/mica-gpu/mica/test/fixture"
)

// explainFiles runs explain with manifests on standard input, in the cluster of testdata.
func explainFiles(t *testing.T, manifests string, o options) (string, error) {
	t.Helper()
	reader := cluster(t, interceptor.Funcs{})
	o.driver, o.autoscaler = defaults.driver, defaults.autoscaler
	if o.output == "" {
		o.output = "table"
	}
	command := &cobra.Command{}
	command.SetContext(t.Context())
	command.SetIn(strings.NewReader(manifests))
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetErr(io.Discard)
	err := o.run(command, kubeconfig("research"), func(clientcmd.ClientConfig) (client.WithWatch, error) { return reader, nil }, nil)
	return out.String(), err
}

// podOfTemplate names a claim template, such as one of those in the cluster.
func podOfTemplate(name, template string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  containers: [{name: main, image: x}]\n" +
		"  resourceClaims: [{name: gpus, resourceClaimTemplateName: " + template + "}]\n---\n"
}

// The cluster's claim templates, nodes, groups and waiting pods count.
func TestExplainFilesOnACluster(t *testing.T) {
	out, err := explainFiles(t, podOfTemplate("new", "eighty"), options{files: []string{"-"}, output: "json"})
	if exitCode(err) != exitNo {
		t.Errorf("exit code %d (%v), want %d, as no group has such GPUs", exitCode(err), err, exitNo)
	}
	var plan explain.Plan
	if err := json.Unmarshal([]byte(out), &plan); err != nil {
		t.Fatal(err)
	}
	if len(plan.Pods) != 1 || plan.Pods[0].Namespace != "research" || plan.Fits {
		t.Errorf("got %s", out)
	}
	if why := plan.Pods[0].Summary; !strings.Contains(why, "memory") {
		t.Errorf("the reason %q is not that of a pod of the cluster", why)
	}
}

// classes and policy are those of Mica's chart, which a user without a cluster renders.
const chart = `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'}}]}
---
apiVersion: mica.gpu/v1alpha1
kind: GPUPolicy
metadata: {name: whole}
spec: {shapes: {whole: {}}}
---
`

const oneGPU = `apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
`

func TestExplainFilesOnAnInstanceType(t *testing.T) {
	out, err := explainFiles(t, oneGPU+podOfTemplate("new", "one"), options{files: []string{"-"}, templates: []string{"g5.12xlarge"}})
	if err != nil || !strings.Contains(out, "a new node has room for 4 such pods") || !strings.Contains(out, "Everything fits.") {
		t.Errorf("%v:\n%s", err, out)
	}
	o := options{files: []string{"-"}, templates: []string{"g5.12xlarge"}, offline: true}
	out, err = explainFiles(t, chart+oneGPU+podOfTemplate("new", "one"), o)
	if err != nil || !strings.Contains(out, "Group g5.12xlarge would add 1 node.") {
		t.Errorf("offline: %v:\n%s", err, out)
	}
	out, err = explainFiles(t, oneGPU+podOfTemplate("new", "one"), o)
	if exitCode(err) != exitNo || !strings.Contains(out, "there are no device classes") {
		t.Errorf("offline, without classes: %v:\n%s", err, out)
	}
}

func TestExplainAnInstanceType(t *testing.T) {
	out, err := explainFiles(t, "", options{templates: []string{"p5.48xlarge"}})
	if err != nil || !strings.Contains(out, "NVIDIA H100 80GB HBM3") || !strings.Contains(out, "without a GPUPolicy") {
		t.Errorf("%v: %s", err, out)
	}
	out, err = explainFiles(t, chart, options{files: []string{"-"}, templates: []string{"p5.48xlarge"}, offline: true, output: "yaml"})
	if err != nil || strings.Contains(out, "timeslice") || !strings.Contains(out, "kind: ResourceSlice") {
		t.Errorf("%v: %s", err, out)
	}
	for instanceType, want := range map[string]string{
		"g5.xlarg": "did you mean g5.xlarge", "x1": "families g4dn", "p6-b300.48xlarge": "not predicted", "trn1.2xlarge": "no NVIDIA GPU",
	} {
		_, err := explainFiles(t, "", options{templates: []string{instanceType}})
		fixture.Sentence(t, err, "--template", want)
	}
}

func TestFilesThatCannotBeExplained(t *testing.T) {
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
	for name, tc := range map[string]struct {
		manifests string
		files     []string
		want      []string
	}{
		"no such file":      {"", []string{filepath.Join(os.DevNull, "pods.yaml")}, []string{"read the manifests", "pods.yaml"}},
		"nothing in it":     {"# nothing\n---\n", []string{"-"}, []string{"no pod", "Deployments"}},
		"no pod":            {service, []string{"-"}, []string{"no pod", "Service/s"}},
		"a pod that exists": {podOfTemplate("big", "eighty"), []string{"-"}, []string{"research/big exists", "explain pod/big"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := explainFiles(t, tc.manifests, options{files: tc.files})
			fixture.Sentence(t, err, tc.want...)
			if code := exitCode(err); code != exitFailed {
				t.Errorf("exit code %d, want %d", code, exitFailed)
			}
		})
	}
}
