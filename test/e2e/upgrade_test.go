//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// The chart and the images of the next version: those of today under another name.
const (
	nextVersion = "99.0.0"
	nextTag     = "next"
	nextClass   = "next" // what a value of it adds
	nextCRD     = "crds/mica.gpu_gpubudgets.yaml"
	nextMark    = "mica.gpu/e2e-version"
)

// TestUpgradeWithPodsRunning goes to the next version of the chart and of the images, and back, while pods hold a
// device of each shape and others start and stop: none of them may notice.
func TestUpgradeWithPodsRunning(t *testing.T) {
	m := under.onNode(t)
	s, _ := newShareScenario(t, len(under.devices))
	m.tagImages(t)
	chart := nextChart(t)
	s.createTemplate("one", s.claimFor(1))
	s.createTemplate("partition", s.partitionsFor(1))
	s.createTemplate("slice", s.sharesFor(timeSliceClass, 1, nil))
	shared := s.devices[len(s.devices)-1]
	s.createTemplate("client", s.sharesFor(mpsClass, 1, nil, s.of(shared)))
	held := s.hold("one", "partition", "slice", "client")
	s.expectPluginReady()
	before, daemon := s.release(), m.mpsDaemonOf(t, shared)

	t.Cleanup(func() {
		if t.Failed() {
			s.helm("rollback", "mica", before.revision)
		}
	})
	s.changeRelease(held, "upgrade", "mica", chart, "--reset-then-reuse-values", "--set", "image.tag="+nextTag,
		"--set", "deviceClass.products."+nextClass+"=NVIDIA H100 80GB HBM3")
	s.expectRelease(release{chart: "mica-" + nextVersion, image: nextTag, class: true})
	s.expectCRDsOnlyByHand(chart)

	s.changeRelease(held, "rollback", "mica", before.revision)
	s.expectRelease(before)
	if now := m.mpsDaemonOf(t, shared); now != daemon {
		t.Errorf("the MPS daemon was the process %d, is %d", daemon, now)
	}
	s.createPod(s.clientFromTemplate("further-client", "client"))
	s.waitRunning("further-client")
	s.expectConnected("held-client")
	s.readDevicesAgain()
}

// tagImages gives the images under test the name of the next version.
func (m machine) tagImages(t testing.TB) {
	t.Helper()
	daemonSet, err := m.daemonSet(t.Context())
	must(t, err, "get DaemonSet %s", m.plugin)
	controllers, err := m.client.AppsV1().Deployments(m.plugin.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: controllerSelector})
	must(t, err, "list the controllers")
	for _, spec := range []corev1.PodSpec{daemonSet.Spec.Template.Spec, controllers.Items[0].Spec.Template.Spec} {
		image := spec.Containers[0].Image
		m.cluster(t, "tag", image, image[:strings.LastIndex(image, ":")+1]+nextTag)
	}
}

// nextChart is the chart with another version, and with a CRD that has changed.
func nextChart(t testing.TB) string {
	t.Helper()
	chart := filepath.Join(t.TempDir(), "mica")
	must(t, os.CopyFS(chart, os.DirFS(chartDirectory)), "copy the chart")
	for file, change := range map[string][2]string{
		"Chart.yaml": {"\nversion: ", "\nversion: " + nextVersion + " # was "},
		nextCRD:      {"\n  annotations:\n", "\n  annotations:\n    " + nextMark + ": next\n"},
	} {
		path := filepath.Join(chart, file)
		content, err := os.ReadFile(path)
		must(t, err, "read %s", path)
		changed := bytes.Replace(content, []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(changed, content) {
			t.Fatalf("%s has no %q", file, change[0])
		}
		must(t, os.WriteFile(path, changed, 0o600), "write %s", path)
	}
	return chart
}

// helm runs a command of helm on the release, and waits for what it changes. Helm's own way of waiting would
// wait for the MPS supervisors, which no upgrade replaces.
func (s *scenario) helm(arguments ...string) {
	s.Helper()
	must(s, s.runHelm(arguments), "run helm")
}

func (s *scenario) runHelm(arguments []string) error {
	arguments = append(arguments, "--namespace", s.plugin.namespace, "--wait=legacy", "--timeout", "2m")
	if output, err := exec.Command(os.Getenv("MICA_HELM"), arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("helm %q: %w: %s", arguments, err, output)
	}
	return nil
}

// holder is what a pod that must not be disturbed has.
type holder struct{ run, claim, devices string }

// hold starts a pod from each template.
func (s *scenario) hold(templates ...string) map[string]holder {
	s.Helper()
	held := map[string]holder{}
	for _, template := range templates {
		name := "held-" + template
		if template == "client" {
			s.createPod(s.clientFromTemplate(name, template))
		} else {
			s.createPod(s.podFromTemplate(name, template))
		}
	}
	for _, template := range templates {
		held["held-"+template] = s.holder("held-" + template)
	}
	return held
}

func (s *scenario) holder(name string) holder {
	s.Helper()
	pod := s.waitRunning(name)
	claim := s.claimOf(pod)
	var devices []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, result.Device)
	}
	return holder{run: containerRun(pod), claim: string(claim.UID), devices: strings.Join(devices, ",")}
}

// changeRelease runs a command of helm while pods start and stop, and one more after it.
func (s *scenario) changeRelease(held map[string]holder, arguments ...string) {
	s.Helper()
	plugin := s.awaitPlugin(s)
	ended := make(chan error, 1)
	go func() { ended <- s.runHelm(arguments) }()
	started := 0
	for done := false; !done; started++ {
		select {
		case err := <-ended:
			must(s, err, "change the release")
			done = true
		default:
		}
		template := []string{"one", "partition"}[started%2]
		s.startAndStop(fmt.Sprintf("%s-%d", template, started), template)
	}
	s.Logf("helm %s: %d pods started and stopped meanwhile", arguments[0], started)
	s.awaitRollout(plugin.UID)
	for _, name := range slices.Sorted(maps.Keys(held)) {
		if now := s.holder(name); now != held[name] {
			s.Errorf("helm %s disturbed pod %s: it had %+v, has %+v", arguments[0], name, held[name], now)
		}
	}
	s.expectConnected("held-client")
	eventually(s, startTimeout, "records and CDI files are those of the claims in use", s.expectNodeMatchesClaims)
}

// release is what is installed.
type release struct {
	chart, image, revision string
	class                  bool
}

// release reads the installed version from what it has made.
func (s *scenario) release() release {
	s.Helper()
	daemonSet, err := s.daemonSet(s.Context())
	must(s, err, "get DaemonSet %s", s.plugin)
	image := daemonSet.Spec.Template.Spec.Containers[0].Image
	_, err = s.client.ResourceV1().DeviceClasses().Get(s.Context(), nextClass+"."+s.driver, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		must(s, err, "get the DeviceClass")
	}
	secrets, listed := s.client.CoreV1().Secrets(s.plugin.namespace).List(s.Context(), metav1.ListOptions{LabelSelector: "owner=helm,name=mica,status=deployed"})
	must(s, listed, "list the releases")
	if len(secrets.Items) != 1 {
		s.Fatalf("there are %d deployed releases", len(secrets.Items))
	}
	return release{
		chart: daemonSet.Labels["helm.sh/chart"], image: image[strings.LastIndex(image, ":")+1:], class: err == nil,
		revision: secrets.Items[0].Labels["version"],
	}
}

// expectRelease compares what is installed, but for the number of the revision.
func (s *scenario) expectRelease(want release) {
	s.Helper()
	got := s.release()
	want.revision = got.revision
	if got != want {
		s.Errorf("installed is %+v, want %+v", got, want)
	}
}

// expectCRDsOnlyByHand finds the CRD as it was after helm's upgrade, and changed after it was applied as the page of
// upgrades says. Then it applies the old one, which is how the other tests want it.
func (s *scenario) expectCRDsOnlyByHand(chart string) {
	s.Helper()
	crds := s.dynamicClient().Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	apply := func(chart string) *unstructured.Unstructured {
		content, err := os.ReadFile(filepath.Join(chart, nextCRD))
		must(s, err, "read the CRD")
		var crd unstructured.Unstructured
		must(s, yaml.Unmarshal(content, &crd.Object), "read the CRD")
		applied, err := crds.Apply(s.Context(), crd.GetName(), &crd, metav1.ApplyOptions{FieldManager: "kubectl", Force: true})
		must(s, err, "apply the CRD")
		return applied
	}
	before, err := crds.Get(s.Context(), "gpubudgets.mica.gpu", metav1.GetOptions{})
	must(s, err, "get the CRD")
	if before.GetAnnotations()[nextMark] != "" {
		s.Error("helm upgrade has changed a CRD: the page of upgrades says that it does not")
	}
	if apply(chart).GetAnnotations()[nextMark] == "" {
		s.Error("the CRD is not upgraded after it was applied")
	}
	if apply(chartDirectory).GetAnnotations()[nextMark] != "" {
		s.Error("the CRD is not as before after it was applied again")
	}
}
