//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/test/pages"
)

// TestCommandsOfTheDocs runs the blocks of commands in the pages that say run=cluster, as a reader who copies them does. What
// a page writes in capitals for the reader's own names is replaced by what there is.
func TestCommandsOfTheDocs(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 1)
	s.createTemplate("one-gpu", s.claimFor(1))
	s.createPod(s.podFromTemplate("gpu-pod", "one-gpu"))
	pod := s.waitRunning("gpu-pod")
	plugin := s.awaitPlugin(t)
	claims, err := s.client.ResourceV1().ResourceClaims(s.namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err, "list the claims")
	names := strings.NewReplacer("PLUGIN-POD", plugin.Name, "NODE-NAME", pod.Spec.NodeName, " NODE ", " "+pod.Spec.NodeName+" ",
		" POD ", " gpu-pod ", " POD\n", " gpu-pod\n", " NAMESPACE ", " "+s.namespace+" ", "NAMESPACE=default", "NAMESPACE="+s.namespace,
		" CLAIM ", " "+claims.Items[0].Name+" ", " NAME ", " "+claims.Items[0].Name+" ")
	blocks, err := pages.Blocks("../..")
	must(t, err, "read the pages")
	ran := 0
	for _, block := range blocks {
		if block.Attributes["run"] == "cluster" {
			ran++
			s.runDocumented(block.String(), names.Replace(prompt.ReplaceAllString(block.Script(), "")))
		}
	}
	if ran < 15 {
		t.Errorf("only %d blocks were run: does the test look for the right thing?", ran)
	}
}

// prompt is what a recorded session begins its lines with.
var prompt = regexp.MustCompile(`(?m)^\$ `)

// documentedTimeout bounds a block of several commands; some look at all of the node.
const documentedTimeout = 4 * time.Minute

// runDocumented runs a script with kubectl in the test's namespace, and with the directories that commands name.
func (s *scenario) runDocumented(where, script string) {
	s.Helper()
	root, err := filepath.Abs("../..")
	must(s, err, "find the checkout")
	directory := s.TempDir()
	for _, name := range []string{"examples", "deployments"} {
		must(s, os.Symlink(filepath.Join(root, name), filepath.Join(directory, name)), "make %s seen", name)
	}
	config, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	must(s, err, "read the kubeconfig")
	must(s, os.WriteFile(filepath.Join(directory, "config"), config, 0o600), "write a kubeconfig")
	ctx, cancel := context.WithTimeout(s.Context(), documentedTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c",
		"kubectl config set-context --current --namespace="+s.namespace+" >/dev/null\n"+script)
	command.Dir = directory
	// kubectl finds the plugin gpu on PATH.
	path := filepath.Dir(os.Getenv("MICA_KUBECTL_GPU")) + ":" + os.Getenv("PATH")
	command.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(directory, "config"), "PATH="+path)
	if output, err := command.CombinedOutput(); err != nil {
		s.Errorf("%s: %v: the commands\n%s\nend with\n%s", where, err, script, output)
	}
}
