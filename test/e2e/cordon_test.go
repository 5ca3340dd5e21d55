//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestCordonedGPUsGetNoNewClaims cordons a GPU, in all of its shapes: the pod that has it stays, new pods
// get others, and after it is uncordoned one gets it again. Before each pod is created, kubectl gpu
// explain -f reports whether it fits, and the scheduler does as it says.
func TestCordonedGPUsGetNoNewClaims(t *testing.T) {
	s := newScenario(t, len(under.devices))
	t.Cleanup(func() { s.gpu(0, "uncordon", "node", s.node) })
	s.createTemplate("one", s.claimFor(1))
	s.createTemplate("all", s.claimFor(len(s.devices)))
	s.createTemplate("more", s.claimFor(len(s.devices)+1))
	s.createPod(s.podFromTemplate("stays", "one"))
	had := s.expectOwnDevices("stays")[0]
	run := containerRun(s.waitRunning("stays"))

	if out := s.gpu(0, "cordon", "gpu", s.node+"/"+had.name, "--dry-run"); !strings.Contains(out, "stays") || !strings.Contains(out, "Nothing was created") {
		t.Errorf("a dry run prints:\n%s", out)
	}
	s.gpu(0, "cordon", "gpu", had.uuid, "--effect", "None")
	s.expectRuleSays("1 pod would be evicted")
	t.Cleanup(func() { s.gpu(0, "uncordon", "gpu", had.uuid) })
	s.gpu(0, "cordon", "gpu", had.uuid, "--reason", "e2e")

	// All other GPUs can be had, and not one more.
	rest := len(s.devices) - 1
	s.createTemplate("rest", s.claimFor(rest))
	for _, tc := range []struct {
		template string
		fits     bool
	}{{"all", false}, {"more", false}, {"rest", true}, {"one", false}} {
		s.expectAsExplained("new-"+tc.template, tc.template, tc.fits)
	}
	for _, d := range s.expectOwnDevices("new-rest") {
		if d.uuid == had.uuid {
			t.Errorf("a new pod got the cordoned GPU")
		}
	}
	if now := containerRun(s.waitRunning("stays")); now != run {
		t.Errorf("the pod of the cordoned GPU was disturbed: its container was %s, is %s", run, now)
	}
	s.deletePod("stays")
	s.expectUnschedulable("new-one")
	if out := s.gpu(0, "uncordon", "gpu", s.node+"/"+had.name); !strings.Contains(out, "is uncordoned") {
		t.Errorf("uncordon prints: %s", out)
	}
	s.waitRunningNudged("new-one")
	if got := s.expectOwnDevices("new-one")[0]; got.uuid != had.uuid {
		t.Errorf("the waiting pod got GPU %s, want %s, which is uncordoned", got.uuid, had.uuid)
	}
}

// gpu runs kubectl gpu in the namespace, which is to end with that code.
func (s *scenario) gpu(code int, arguments ...string) string {
	s.Helper()
	return s.gpuWith(code, nil, arguments...)
}

func (s *scenario) gpuWith(code int, in []byte, arguments ...string) string {
	s.Helper()
	// Also what is cleaned up after the test.
	command := exec.CommandContext(context.WithoutCancel(s.Context()), os.Getenv("MICA_KUBECTL_GPU"), append(arguments, "--namespace", s.namespace)...)
	command.Stdin = bytes.NewReader(in)
	var out, notes bytes.Buffer
	command.Stdout, command.Stderr = &out, &notes
	err := command.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) || command.ProcessState.ExitCode() != code {
		s.Errorf("kubectl gpu %s ended with %v, want exit code %d: %s%s", strings.Join(arguments, " "), err, code, &out, &notes)
	}
	return out.String()
}

// expectAsExplained creates a pod, and expects the scheduler to do what explain -f predicted.
func (s *scenario) expectAsExplained(name, template string, fits bool) {
	s.Helper()
	pod := s.podFromTemplate(name, template)
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	manifest, err := yaml.Marshal(pod)
	must(s, err, "write pod %s", name)
	code := 1
	if fits {
		code = 0
	}
	out := s.gpuWith(code, manifest, "explain", "-f", "-", "-o", "json")
	var result struct {
		Pods []struct{ Outcome, Node string }
	}
	must(s, json.Unmarshal([]byte(out), &result), "read the plan: %s", out)
	if len(result.Pods) != 1 || fits != (result.Pods[0].Outcome == "FitsNode" && result.Pods[0].Node == s.node) {
		s.Errorf("pod %s is explained as %s, want that it fits: %t", name, out, fits)
	}
	s.createPod(pod)
	if fits {
		s.waitRunning(name)
	} else {
		s.expectUnschedulable(name)
		if template != "one" {
			s.deletePod(name)
		}
	}
}

// expectRuleSays waits until the status of one of the rules has the text.
func (s *scenario) expectRuleSays(text string) {
	s.Helper()
	eventually(s, retryTimeout, "a rule says "+text, func(ctx context.Context) error {
		rules, err := s.client.ResourceV1().DeviceTaintRules().List(ctx, metav1.ListOptions{LabelSelector: "mica.gpu/cordon"})
		if err != nil {
			return err
		}
		var messages []string
		for _, rule := range rules.Items {
			for _, condition := range rule.Status.Conditions {
				if condition.Type == resourcev1.DeviceTaintConditionEvictionInProgress && strings.Contains(condition.Message, text) {
					return nil
				}
				messages = append(messages, condition.Message)
			}
		}
		return fmt.Errorf("%d rules have the messages %q", len(rules.Items), messages)
	})
}
