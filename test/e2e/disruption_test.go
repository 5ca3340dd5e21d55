//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/node/lock"
)

// The tests of this file disturb the plugin or kubelet, so they run alone: `go test` runs
// tests without t.Parallel before all others.

// TestPluginKilledDuringPrepares starts a pod for every GPU at once and kills the plugin in
// the middle of their preparation, and then, as soon as it has a process, again and again
// while pods still start.
func TestPluginKilledDuringPrepares(t *testing.T) {
	m := under.onNode(t)
	s := newScenario(t, len(under.devices))
	s.createTemplate("one", s.claimFor(1))
	all := names("pod", len(s.devices))
	release := m.holdGPUs(t, s.devices)
	for _, name := range all {
		s.createPod(s.podFromTemplate(name, "one"))
	}
	m.waitForPreparations(t, len(s.devices))
	m.killAnyPlugin(t)
	release()
	const maxKills = 4
	kills := 1
	for ; kills < maxKills && s.anyNotRunning(all); kills++ {
		m.killAnyPlugin(t)
	}
	t.Logf("killed the plugin %d times", kills)
	s.waitRunningNudged(all...)
	groups := map[string][]device{}
	for _, name := range all {
		groups[name] = s.expectOwnDevices(name)
	}
	s.expectDistinct(groups)
	s.expectPluginReady()
	s.expectNodeSettles()
}

// killAnyPlugin kills the plugin, ready or not, and its pod with it: kubelet would wait
// longer with each restart of the same pod, a new pod it starts at once. The pod is deleted first. Otherwise kubelet may
// restart its container, which registers after the new pod's, gets the claims, and is ended while it prepares one.
// Meanwhile the process is stopped, so that it does not end gracefully.
func (m machine) killAnyPlugin(t *testing.T) {
	t.Helper()
	eventually(t, startTimeout, "the plugin has a process to kill", func(ctx context.Context) error {
		pods, err := m.pluginPods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			pid, err := m.processOf(&pods[i], pluginContainer)
			if err != nil {
				continue
			}
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				return err
			}
			return errors.Join(m.forceDelete(ctx, &pods[i]), syscall.Kill(pid, syscall.SIGKILL))
		}
		return fmt.Errorf("none of its %d pods has one", len(pods))
	})
}

func (in *installation) forceDelete(ctx context.Context, pod *corev1.Pod) error {
	return in.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
}

// renewPlugin gives the plugin a pod without restarts, which kubelet would delay in the
// next test.
func (s *scenario) renewPlugin() {
	s.Helper()
	pods, err := s.pluginPods(s.Context())
	must(s, err, "find the plugin's pods")
	for i := range pods {
		must(s, s.client.CoreV1().Pods(pods[i].Namespace).Delete(s.Context(), pods[i].Name, metav1.DeleteOptions{}), "delete pod %s", pods[i].Name)
	}
	s.expectPluginReady()
}

func (s *scenario) anyNotRunning(podNames []string) bool {
	s.Helper()
	return slices.ContainsFunc(podNames, func(name string) bool {
		pod, err := s.pod(s.Context(), name)
		must(s, err, "get pod %s", name)
		return !isReady(pod)
	})
}

// holdGPUs stops every preparation half-way, by the locks with which the two plugins of a
// rolling update exclude each other.
func (m machine) holdGPUs(t *testing.T, devices []device) (release func()) {
	t.Helper()
	locks, err := lock.Open(m.lockDirectory(t))
	must(t, err, "open the plugin's locks")
	var keys []string
	for _, d := range devices {
		keys = append(keys, "gpu-"+d.uuid)
	}
	release, err = locks.Lock(t.Context(), keys...)
	must(t, err, "lock the GPUs")
	t.Cleanup(release)
	return release
}

// waitForPreparations waits until the plugin works on a claim and holds its lock, where the
// test holds so many.
func (m machine) waitForPreparations(t *testing.T, own int) {
	t.Helper()
	var file syscall.Stat_t
	must(t, syscall.Stat(filepath.Join(m.lockDirectory(t), "keys.lock"), &file), "find the plugin's locks")
	inode := fmt.Sprintf(":%d ", file.Ino)
	eventually(t, startTimeout, "the plugin prepares a claim", func(context.Context) error {
		locks, err := os.ReadFile("/proc/locks")
		if held := strings.Count(string(locks), inode); err == nil && held <= own {
			err = fmt.Errorf("%d locks are held, %d of them by the test", held, own)
		}
		return err
	})
}

// lockDirectory stays valid when the plugin is killed.
func (m machine) lockDirectory(t *testing.T) string {
	t.Helper()
	return m.open(t, filepath.Join(m.pluginsDirectory, m.driver, "locks"))
}

// open is the path of a directory that the plugin has, also after the plugin's end.
func (m machine) open(t *testing.T, path string) string {
	t.Helper()
	root, err := m.pluginRoot(t.Context())
	must(t, err, "find the plugin's files")
	directory, err := os.Open(filepath.Join(root, path))
	must(t, err, "open the plugin's directory %s", path)
	t.Cleanup(func() { _ = directory.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", directory.Fd())
}

// waitRunningNudged waits for pods whose preparation may have failed. kubelet tries again
// when it hears of a change of the pod, otherwise only after 60 to 90 seconds, so the pods
// that wait get a new annotation from time to time.
func (s *scenario) waitRunningNudged(podNames ...string) {
	s.Helper()
	eventually(s, retryTimeout, "all pods run", func(ctx context.Context) error {
		nudge := time.Since(s.nudged) > nudgeInterval
		if nudge {
			s.nudged = time.Now()
		}
		var waiting error
		for _, name := range podNames {
			pod, err := s.pod(ctx, name)
			if err != nil {
				return err
			}
			if isReady(pod) {
				continue
			}
			waiting = errors.Join(fmt.Errorf("pod %s: %s", name, summary(pod)), s.wakeScheduler(ctx, pod))
			if nudge {
				if err := s.nudge(ctx, name); err != nil {
					return err
				}
			}
		}
		return waiting
	})
}

func (s *scenario) expectPluginReady() {
	s.Helper()
	s.awaitPlugin(s)
}

// expectNodeSettles waits until the plugin's files are exactly those of the claims in use.
func (s *scenario) expectNodeSettles() {
	s.Helper()
	eventually(s, startTimeout, "records and CDI files are those of the claims in use", s.expectNodeMatchesClaims)
}

func TestKubeletRestart(t *testing.T) {
	m := under.onNode(t)
	s := newScenario(t, 2)
	s.createTemplate("one", s.claimFor(1))
	s.createPod(s.podFromTemplate("before", "one"))
	held := s.expectOwnDevices("before")
	before := s.waitRunning("before")
	old := s.sliceUIDs(t.Context())

	m.restartKubelet(t)
	eventually(t, startTimeout, "kubelet deletes the slices", func(ctx context.Context) error {
		for uid := range s.sliceUIDs(ctx) {
			if old[uid] {
				return fmt.Errorf("the slice %s is still the old one", uid)
			}
		}
		return nil
	})
	start := time.Now()
	// The library's own controller would take 30 seconds to see that the slices are gone.
	eventually(t, 25*time.Second, "new slices are published in place of those that kubelet deleted", func(ctx context.Context) error {
		published, err := s.publishedDevices(ctx)
		if err != nil {
			return err
		}
		if got, want := len(published[s.node]), len(s.published()); got != want {
			return fmt.Errorf("%d of %d devices are published", got, want)
		}
		return nil
	})
	t.Logf("from the last deleted slice to complete new ones: %s", time.Since(start).Round(time.Millisecond))

	s.createPod(s.podFromTemplate("after", "one"))
	s.waitRunningNudged("after")
	s.expectDistinct(map[string][]device{"before": held, "after": s.expectOwnDevices("after")})
	if now := s.waitRunning("before"); containerRun(now) != containerRun(before) {
		t.Errorf("the running pod was disturbed: its container was %s, is %s", containerRun(before), containerRun(now))
	}
	s.expectPluginReady()
	s.expectNodeSettles()
}

// startAndStop is the life of a pod with one device, which nothing disturbs.
func (s *scenario) startAndStop(pod, template string) {
	s.Helper()
	s.createPod(s.podFromTemplate(pod, template))
	if devices := s.expectOwnDevices(pod); len(devices) != 1 {
		s.Errorf("pod %s got %d devices, want 1", pod, len(devices))
	}
	s.expectNoEvent(pod, reasonPrepareFailed)
	s.deletePod(pod)
}

func (s *scenario) rolledOut(old types.UID) bool {
	s.Helper()
	daemonSet, err := s.daemonSet(s.Context())
	must(s, err, "get DaemonSet %s", s.plugin)
	pods, err := s.pluginPods(s.Context())
	must(s, err, "find the plugin's pods")
	status := daemonSet.Status
	return status.ObservedGeneration >= daemonSet.Generation &&
		status.UpdatedNumberScheduled == status.DesiredNumberScheduled &&
		status.NumberUnavailable == 0 &&
		len(pods) == 1 && pods[0].UID != old
}

// awaitRollout waits until another plugin has taken the place of the pod with the UID.
func (s *scenario) awaitRollout(old types.UID) {
	s.Helper()
	eventually(s, retryTimeout, "another plugin has taken over", func(context.Context) error {
		if !s.rolledOut(old) {
			return errors.New("the rolling update has not ended")
		}
		return nil
	})
}

// readDevicesAgain expects the devices that were published at the start.
func (s *scenario) readDevicesAgain() {
	s.Helper()
	eventually(s, startTimeout, "the devices are published that were at the start", s.expectDevicesOfTheStart)
}

func (in *installation) expectDevicesOfTheStart(ctx context.Context) error {
	published, err := in.publishedDevices(ctx)
	if err != nil {
		return err
	}
	now := published[in.node]
	if !slices.EqualFunc(now, in.published(), func(a, b device) bool { return a.name == b.name && a.uuid == b.uuid && a.shared() == b.shared() }) {
		return fmt.Errorf("the published devices are now %v, were %v", deviceNames(now), deviceNames(in.published()))
	}
	return nil
}

func deviceNames(devices []device) []string {
	all := make([]string, len(devices))
	for i, d := range devices {
		all[i] = d.name
	}
	return all
}

func (s *scenario) sliceUIDs(ctx context.Context) map[types.UID]bool {
	s.Helper()
	list, err := s.nodeSlices(ctx)
	must(s, err, "list the node's slices")
	uids := map[types.UID]bool{}
	for _, slice := range list {
		uids[slice.UID] = true
	}
	return uids
}

// nodeSlices are the driver's slices of the node.
func (s *scenario) nodeSlices(ctx context.Context) ([]resourcev1.ResourceSlice, error) {
	list, err := s.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.node})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(slice resourcev1.ResourceSlice) bool { return slice.Spec.Driver != s.driver }), nil
}
