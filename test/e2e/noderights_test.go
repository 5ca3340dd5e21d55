//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// nodeRight is something of its node that a container has, and what breaks without it.
type nodeRight struct {
	take func(*corev1.PodSpec)
	// check is the check of a self-test that says so; without one, what the DaemonSet runs ends and says so.
	check, says string
	// world changes the pod before the right is taken, to a node on which it counts.
	world func(*corev1.PodSpec)
	// unseen is why no simulated GPU shows it.
	unseen string
}

// privileges are those of a container that opens the driver's devices.
var privileges = map[string]nodeRight{
	"privileged": {check: "privileges", says: "lacks the capability SYS_ADMIN", take: func(pod *corev1.PodSpec) {
		pod.Containers[0].SecurityContext.Privileged = ptr.To(false)
	}},
	"runAsUser": {check: "privileges", says: "runs as user 65534", take: func(pod *corev1.PodSpec) {
		pod.Containers[0].SecurityContext.RunAsUser = ptr.To[int64](65534)
	}},
}

// pluginRights and supervisorRights have a row for each volume, by its name, beside the privileges.
var (
	pluginRights = map[string]nodeRight{
		"registrar":     {says: "look for kubelet's registration directory"},
		"state":         {says: "read-only file system"},
		"cdi":           {says: "choose a writable --cdi-root that the container runtime reads"},
		"mps-root":      {check: "directories", says: "/mps does not exist"},
		"pod-resources": {check: "kubelet", says: "which containers have devices of device plugins"},
		"driver-root":   {check: "driver", says: "libnvidia-ml.so.1"},
		"dev":           {check: "CDI", says: "/dev/nvidiactl is missing", world: nodesOfTheHost},
		"dev-char":      {check: "directories", says: "/host/dev/char cannot be written", world: devIsOneMount},
		"dev-caps":      {check: "directories", says: "/host/dev/nvidia-caps cannot be written", world: devIsOneMount},
	}
	supervisorRights = map[string]nodeRight{
		"mps-root":    {says: "/dev/shm is not the directory"},
		"mps-shm":     {says: "/dev/shm is not the directory"},
		"driver-root": {check: "driver", says: "libnvidia-ml.so.1"},
		"dev":         {unseen: "the simulated driver's root has device nodes of its own, and a real one's capability devices appear in /dev with their partition"},
		"hostPID":     {unseen: "the simulated daemon takes clients of every PID namespace, and NVIDIA's knows them by the IDs of its own"},
	}
)

// TestEachRightOnTheNodeIsNeeded starts what the DaemonSets run, or the self-test in its place, with one right less at
// a time, and with all rights. It runs alone: the self-test would find what other tests do to the GPUs.
func TestEachRightOnTheNodeIsNeeded(t *testing.T) {
	under.onSimulator(t)
	newScenario(t, len(under.devices)) // no claim changes a GPU meanwhile
	sets, err := under.client.AppsV1().DaemonSets(under.plugin.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=mica"})
	must(t, err, "list Mica's DaemonSets")
	for _, set := range sets.Items {
		known := maps.Clone(supervisorRights)
		if set.Name == under.plugin.name {
			known = maps.Clone(pluginRights)
		}
		maps.Copy(known, privileges)
		spec := set.Spec.Template.Spec
		expectRightsKnown(t, set.Name, &spec, known)
		for name, right := range known {
			if right.unseen != "" {
				continue
			}
			if right.take == nil {
				right.take = func(pod *corev1.PodSpec) { removeVolume(pod, name) }
			}
			t.Run(set.Name+" without "+name, func(t *testing.T) {
				t.Parallel()
				pod := spec.DeepCopy()
				right.inWorld(pod)
				right.take(pod)
				if found := right.symptoms(t, pod); !strings.Contains(found, right.says) {
					t.Errorf("want %q, got:\n%s", right.says, found)
				}
			})
			if right.world == nil {
				continue
			}
			t.Run(set.Name+" with "+name, func(t *testing.T) {
				t.Parallel()
				pod := spec.DeepCopy()
				right.inWorld(pod)
				if found := right.symptoms(t, pod); found != "" {
					t.Errorf("got:\n%s", found)
				}
			})
		}
		t.Run(set.Name+" with all", func(t *testing.T) {
			t.Parallel()
			report := selftestOf(t, runBeside(t, spec.DeepCopy(), true))
			for name, right := range known {
				if found := report.findings(right.check); right.world == nil && found != "" {
					t.Errorf("%s is there, and check %q has found %s", name, right.check, found)
				}
			}
		})
	}
}

// inWorld changes a pod to a node on which the right counts.
func (r nodeRight) inWorld(pod *corev1.PodSpec) {
	if r.world != nil {
		r.world(pod)
	}
}

// symptoms are the findings or log lines of the pod about the right.
func (r nodeRight) symptoms(t *testing.T, pod *corev1.PodSpec) string {
	t.Helper()
	log := runBeside(t, pod, r.check != "")
	if r.check == "" {
		return log
	}
	return selftestOf(t, log).findings(r.check)
}

// expectRightsKnown fails for a right that has no row, and for a row that is of none.
func expectRightsKnown(t *testing.T, name string, pod *corev1.PodSpec, known map[string]nodeRight) {
	t.Helper()
	has := map[string]bool{"runAsUser": true, "privileged": ptr.Deref(pod.Containers[0].SecurityContext.Privileged, false), "hostPID": pod.HostPID}
	for _, volume := range pod.Volumes {
		has[volume.Name] = true
	}
	for right, there := range has {
		if _, row := known[right]; row != there {
			t.Errorf("%s has %s: %t, and a row says what breaks without it: %t", name, right, there, row)
		}
	}
	for right := range known {
		if !has[right] {
			t.Errorf("a row says what breaks if %s has no %s, and it has none", name, right)
		}
	}
	if pod.HostIPC || pod.HostNetwork || len(pod.Containers) != 1 || len(pod.InitContainers) > 0 || pod.Containers[0].SecurityContext.Capabilities != nil {
		t.Errorf("%s shares more with its node than rows can say: %+v", name, pod)
	}
}

func removeVolume(pod *corev1.PodSpec, name string) {
	container := &pod.Containers[0]
	container.VolumeMounts = slices.DeleteFunc(slices.Clone(container.VolumeMounts), func(m corev1.VolumeMount) bool { return m.Name == name })
	pod.Volumes = slices.DeleteFunc(slices.Clone(pod.Volumes), func(v corev1.Volume) bool { return v.Name == name })
}

// nodesOfTheHost takes the device nodes from the driver's root, which then are in the host's /dev alone, as with a
// driver of the host. Nothing is made in it: there is no directory for that.
func nodesOfTheHost(pod *corev1.PodSpec) {
	removeVolume(pod, "dev-char")
	removeVolume(pod, "dev-caps")
	environment := environmentOf(pod.Containers, pluginContainer)
	for i := range pod.Volumes {
		if pod.Volumes[i].Name == "dev" {
			pod.Volumes[i].HostPath.Path = filepath.Join(environment["NVIDIA_DRIVER_ROOT"], "dev")
		}
	}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "none", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{
		Name: "none", MountPath: filepath.Join(environment["DRIVER_ROOT_CTR_PATH"], "dev"), ReadOnly: true,
	})
}

// devIsOneMount makes what is mounted below the host's /dev as read-only as that: the cluster of test/cluster has
// directories of its own there, which a node has not.
func devIsOneMount(pod *corev1.PodSpec) {
	for i, mount := range pod.Containers[0].VolumeMounts {
		if mount.Name == "dev" {
			pod.Containers[0].VolumeMounts[i].RecursiveReadOnly = ptr.To(corev1.RecursiveReadOnlyEnabled)
		}
	}
}

// runBeside runs the container in a pod that no DaemonSet owns, or the self-test in its place, until it ends, and
// returns its log. One that does not end is deleted with the test.
func runBeside(t *testing.T, spec *corev1.PodSpec, selftest bool) string {
	t.Helper()
	container := &spec.Containers[0]
	container.StartupProbe, container.LivenessProbe, container.ReadinessProbe = nil, nil, nil
	if selftest {
		container.Args = []string{"selftest", "--output=json"}
	}
	spec.RestartPolicy, spec.NodeName = corev1.RestartPolicyNever, under.node
	pods := under.client.CoreV1().Pods(under.plugin.namespace)
	pod, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "mica-e2e-", Labels: map[string]string{testLabel: ""}}, Spec: *spec}, metav1.CreateOptions{})
	must(t, err, "create a pod like that of a DaemonSet")
	t.Cleanup(func() {
		must(t, pods.Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}), "delete pod %s", pod.Name)
	})
	// Twelve of them look at all GPUs at once.
	var now *corev1.Pod
	eventually(t, retryTimeout, "pod "+pod.Name+" ends", func(ctx context.Context) (err error) {
		now, err = pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.PodFailed && now.Status.Phase != corev1.PodSucceeded {
			err = errors.New(summary(now))
		}
		return err
	})
	log, err := under.podLog(t.Context(), pod.Namespace, pod.Name, &corev1.PodLogOptions{})
	must(t, err, "read the log of pod %s", pod.Name)
	if log == "" {
		t.Fatalf("pod %s ended without a word: %s, %+v", pod.Name, summary(now), now.Status.ContainerStatuses)
	}
	return log
}

// message is a line of klog, such as E1123 07:31:38.012345, or of a text of several lines in it.
var message = regexp.MustCompile(`(?m)^([IWEF]\d{4} |\t| >).*\n`)

// selftestOf reads the report of a self-test in a log, where messages stand around it and between its lines.
func selftestOf(t *testing.T, log string) selftestReport {
	t.Helper()
	_, output, found := strings.Cut("\n"+message.ReplaceAllString(log, ""), "\n{\n")
	if !found {
		t.Fatalf("there is no report:\n%s", log)
	}
	var report selftestReport
	must(t, json.NewDecoder(strings.NewReader("{"+output)).Decode(&report), "read the report")
	return report
}

// findings are those of a check that has warned or failed.
func (r selftestReport) findings(check string) string {
	for _, c := range r.Checks {
		if c.Name == check && (c.Status == "warning" || c.Status == "failed") {
			return fmt.Sprint(c.Findings)
		}
	}
	return ""
}
