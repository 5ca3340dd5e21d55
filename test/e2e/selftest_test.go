//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/yaml"
)

// selftestReport is what of a report is looked at, which `kubelet-plugin selftest -o json` prints.
type selftestReport struct {
	Checks []struct {
		Name, Status string
		Findings     []string
	}
}

// TestSelftest runs what users are asked to run before they report a bug.
func TestSelftest(t *testing.T) {
	s := newScenario(t, len(under.devices)) // it changes a GPU that no claim has, and claims would wait for it
	pod := s.awaitPlugin(t)
	s.expectGatheredInfo(pod)
	output, err := s.execInPlugin(pod, "kubelet-plugin", "selftest", "--mutate", "--output=json")
	if err != nil {
		t.Errorf("the self-test in the plugin's pod: %v:\n%s", err, output)
	}
	var report selftestReport
	must(t, json.Unmarshal(output, &report), "read the report")
	for _, check := range report.Checks {
		t.Logf("%s: %s %q", check.Name, check.Status, check.Findings)
		if check.Status == "failed" || check.Status == "warning" {
			t.Errorf("%s: %s %q", check.Name, check.Status, check.Findings)
		}
	}
	if len(report.Checks) < 10 {
		t.Errorf("the report has %d checks:\n%s", len(report.Checks), output)
	}
	s.expectNodeSettles()
}

// expectGatheredInfo runs what users attach to a bug: every section is there, and none is an error.
func (s *scenario) expectGatheredInfo(pod *corev1.Pod) {
	s.Helper()
	output, err := s.execInPlugin(pod, "kubelet-plugin", "gatherinfo")
	must(s, err, "gather information in the plugin's pod")
	sections := map[string]any{}
	must(s, yaml.UnmarshalStrict(output, &sections), "read what was gathered")
	for _, name := range []string{"versions", "node", "flags", "driverRoot", "selftest", "nvml", "health", "published", "claims", "cdi", "mps", "metrics", "mounts", "deviceNodes"} {
		section, isMap := sections[name].(map[string]any)
		if sections[name] == nil || isMap && section["error"] != nil {
			s.Errorf("section %s is %v in\n%s", name, sections[name], output)
		}
	}
	for _, word := range []string{"kubeletVersion: v1.", "containerd://", under.devices[0].uuid, "mica_prepared_claims", "/host/dev:"} {
		if !bytes.Contains(output, []byte(word)) {
			s.Errorf("it lacks %q:\n%s", word, output)
		}
	}
	if bytes.Contains(output, []byte("eyJ")) || bytes.Contains(output, []byte("BEGIN")) {
		s.Errorf("it has a token or a certificate:\n%s", output)
	}
}

// execInPlugin runs a program in the plugin's container and returns what it prints, also beside
// an error.
func (s *scenario) execInPlugin(pod *corev1.Pod, command ...string) ([]byte, error) {
	s.Helper()
	request := s.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: pluginContainer, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(s.config, "GET", request.URL().String())
	if err != nil {
		return nil, err
	}
	var output, failure bytes.Buffer
	err = executor.StreamWithContext(s.Context(), remotecommand.StreamOptions{Stdout: &output, Stderr: &failure})
	if failure.Len() > 0 {
		s.Logf("%v wrote to standard error:\n%s", command, failure.String())
	}
	return output.Bytes(), err
}
