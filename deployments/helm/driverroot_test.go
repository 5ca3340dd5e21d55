package helm_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/yaml"
)

// daemonSets are those of the plugin and of the MPS supervisor, in this order.
func daemonSets(t *testing.T, args ...string) []appsv1.DaemonSet {
	t.Helper()
	var found []appsv1.DaemonSet
	for document := range strings.SplitSeq(render(t, append([]string{"--namespace", "mica", "--set", "mps.enabled=true"}, args...)...), "\n---\n") {
		var set appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte(document), &set); err == nil && set.Kind == "DaemonSet" {
			found = append(found, set)
		}
	}
	slices.SortFunc(found, func(a, b appsv1.DaemonSet) int { return -strings.Compare(a.Name, b.Name) })
	if len(found) != 2 {
		t.Fatalf("got %d DaemonSets, want the plugin's and the supervisor's", len(found))
	}
	return found
}

// mountOf is how a container sees the driver: where the volume is from, where it is mounted, and
// the driver root that the container is told.
func mountOf(t *testing.T, pod corev1.PodSpec) (from, to, root string, propagation corev1.MountPropagationMode) {
	t.Helper()
	container := pod.Containers[0]
	volume := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "driver-root" })
	mount := slices.IndexFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "driver-root" })
	variable := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "DRIVER_ROOT_CTR_PATH" })
	if volume < 0 || mount < 0 || variable < 0 {
		t.Fatalf("%s mounts no driver root: %+v", container.Name, pod)
	}
	at := container.VolumeMounts[mount]
	return pod.Volumes[volume].HostPath.Path, at.MountPath, container.Env[variable].Value, *at.MountPropagation
}

func TestTheDriverRootInAContainer(t *testing.T) {
	for root, want := range map[string][2]string{
		"/":                   {"/", "/driver-root"},
		"/run/nvidia/driver/": {"/run/nvidia", "/driver-root/driver"},
		"/driver":             {"/", "/driver-root/driver"},
	} {
		for _, set := range daemonSets(t, "--set", "nvidiaDriverRoot="+root) {
			from, _, got, _ := mountOf(t, set.Spec.Template.Spec)
			if from != want[0] || got != want[1] {
				t.Errorf("%s of %s: %s is mounted and the root is at %s, want %v", set.Name, root, from, got, want)
			}
		}
	}
}

// drivers is a node on which a driver container is replaced while a container runs that has
// the driver root mounted. It prints what that container sees each time.
const drivers = `
set -e
mount -t tmpfs none /run
mount --make-shared /run
mount -t tmpfs none /mnt
mkdir -p /run/nvidia/driver /run/first /run/second "/mnt$2"
echo first >/run/first/version
echo second >/run/second/version
mount --bind /run/first /run/nvidia/driver
mount --rbind "$1" "/mnt$2"
mount "--make-r$4" "/mnt$2"
cat "/mnt$3/version"
umount /run/nvidia/driver
cat "/mnt$3/version" 2>/dev/null || echo none
mount --bind /run/second /run/nvidia/driver
cat "/mnt$3/version"
`

// A driver container is unmounted and mounted anew when it is upgraded.
func TestADriverContainerThatIsReplacedIsSeen(t *testing.T) {
	kinds := map[corev1.MountPropagationMode]string{corev1.MountPropagationHostToContainer: "slave", corev1.MountPropagationNone: "private"}
	for _, set := range daemonSets(t, "--set", "nvidiaDriverRoot=/run/nvidia/driver") {
		from, to, root, propagation := mountOf(t, set.Spec.Template.Spec)
		output, err := exec.Command("unshare", "--mount", "--map-root-user", "sh", "-c", drivers, "sh", from, to, root, kinds[propagation]).CombinedOutput()
		if err != nil || string(output) != "first\nnone\nsecond\n" {
			t.Errorf("%s sees %q, %v: want the first driver, none, and the second", set.Name, output, err)
		}
	}
}

// Whoever unloads the NVIDIA driver asks its users to go by labels of the node.
func TestWhoUsesTheDriverGoesWhenAsked(t *testing.T) {
	present := map[string]string{"nvidia.com/gpu.present": "true"}
	with := func(key, value string) map[string]string {
		return map[string]string{"nvidia.com/gpu.present": "true", key: value}
	}
	const draDriver, client = "nvidia.com/gpu.deploy.dra-driver", "nvidia.com/gpu.deploy.client"
	for _, args := range [][]string{nil, {"--set-json", `kubeletPlugin.affinity={"nodeAffinity":null,"podAntiAffinity":{}}`}} {
		for _, set := range daemonSets(t, args...) {
			pod := &corev1.Pod{Spec: set.Spec.Template.Spec}
			for _, node := range []struct {
				labels map[string]string
				runs   bool
			}{
				{present, true},
				{with(draDriver, "true"), true},
				{with(client, "true"), true},
				{with(draDriver, "paused-for-driver-upgrade"), false},
				{with(client, "paused-for-driver-upgrade"), false},
				{with(client, "paused-for-mig-change"), false},
				{with(draDriver, "false"), false},
			} {
				labelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node.labels}}
				if runs, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(labelled); err != nil || runs != node.runs {
					t.Errorf("%s with %v on a node with %v: runs is %t, %v", set.Name, args, node.labels, runs, err)
				}
			}
			elsewhere := &corev1.Node{}
			if runs, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(elsewhere); err != nil || runs != (args != nil) {
				t.Errorf("%s with %v on a node without labels: runs is %t, %v", set.Name, args, runs, err)
			}
			if args != nil && pod.Spec.Affinity.PodAntiAffinity == nil {
				t.Errorf("%s lost what kubeletPlugin.affinity says of pods", set.Name)
			}
		}
	}
}
