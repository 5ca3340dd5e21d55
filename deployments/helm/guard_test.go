package helm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChartRefuses(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{
			name: "the namespace default",
			args: []string{"--namespace", "default"},
			want: []string{`does not install itself into the namespace "default"`, "allowDefaultNamespace=true"},
		},
		{
			name: "no namespace at all",
			args: nil,
			want: []string{`does not install itself into the namespace "default"`},
		},
		{
			name: "an unknown value",
			args: []string{"--namespace", "mica", "--set", "imageTag=v1"},
			want: []string{"additional properties 'imageTag' not allowed"},
		},
		{
			name: "an unknown value deep inside",
			args: []string{"--namespace", "mica", "--set", "kubeletPlugin.containers.plugin.port=1"},
			want: []string{"/kubeletPlugin/containers/plugin", "additional properties 'port' not allowed"},
		},
		{
			name: "a namespace value, which is helm's --namespace",
			args: []string{"--namespace", "mica", "--set", "namespace=other"},
			want: []string{"additional properties 'namespace' not allowed"},
		},
		{
			name: "an unknown feature gate",
			args: []string{"--namespace", "mica", "--set", "featureGates.Magic=true"},
			want: []string{"/featureGates", "additional properties 'Magic' not allowed"},
		},
		{
			name: "the image of NVIDIA's driver",
			args: []string{"--namespace", "mica", "--set", "image.repository=registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu"},
			want: []string{"the image of NVIDIA's DRA driver", "Leave image.repository"},
		},
		{
			name: "no GPUs, as NVIDIA's driver is installed for ComputeDomains alone",
			args: []string{"--namespace", "mica", "--set", "resources.gpus.enabled=false"},
			want: []string{"resources.gpus.enabled is false", "leave resources out"},
		},
		{
			name: "consumable shares without the policy that sets them",
			args: []string{"--namespace", "mica", "--set", "consumableShares=4,gpuPolicy.create=false"},
			want: []string{"consumableShares is 4", "set whole.consumableShares in your own GPUPolicy"},
		},
		{
			name: "one consumable share",
			args: []string{"--namespace", "mica", "--set", "consumableShares=1"},
			want: []string{"/consumableShares", "minimum"},
		},
		{
			name: "too many consumable shares, as text",
			args: []string{"--namespace", "mica", "--set-string", "consumableShares=1025"},
			want: []string{"/consumableShares", "does not match pattern"},
		},
		{
			name: "an API version that the driver has no code for",
			args: []string{"--namespace", "mica", "--set", "resourceApiVersion=resource.k8s.io/v1beta1"},
			want: []string{"resourceApiVersion is resource.k8s.io/v1beta1", "leave resourceApiVersion out"},
		},
		{
			name: "the update strategy of NVIDIA's driver upon that of Mica",
			args: []string{"--namespace", "mica", "--set", "kubeletPlugin.updateStrategy.rollingUpdate.maxUnavailable=100%"},
			want: []string{"maxSurge 1 and maxUnavailable 100%", "Leave maxUnavailable out"},
		},
		{
			name: "port 0, which a probe cannot name",
			args: []string{"--namespace", "mica", "--set", "kubeletPlugin.containers.plugin.healthcheckPort=0"},
			want: []string{"/kubeletPlugin/containers/plugin/healthcheckPort"},
		},
		{
			name: "a relative directory",
			args: []string{"--namespace", "mica", "--set", "kubeletPlugin.cdiRoot=cdi"},
			want: []string{"/kubeletPlugin/cdiRoot"},
		},
		{
			name: "a driver name that is no DNS subdomain",
			args: []string{"--namespace", "mica", "--set", "driverName=GPU_nvidia"},
			want: []string{"/driverName"},
		},
		{
			name: "the namespace's default ServiceAccount",
			args: []string{"--namespace", "mica", "--set", "serviceAccount.create=false"},
			want: []string{"serviceAccount.name is empty"},
		},
		{
			name: "the namespace's default ServiceAccount for the controller",
			args: []string{"--namespace", "mica", "--set", "controller.serviceAccount.create=false"},
			want: []string{"controller.serviceAccount.name is empty"},
		},
		{
			name: "one ServiceAccount for plugin and controller",
			args: []string{"--namespace", "mica", "--set", "serviceAccount.name=both", "--set", "controller.serviceAccount.name=both"},
			want: []string{"have one ServiceAccount", "different names"},
		},
		{
			name: "placeholders where the plugin is",
			args: []string{"--namespace", "mica", "--set", "controller.placeholder.namespace.name=mica"},
			want: []string{"is the release's own namespace", "Name another namespace"},
		},
		{
			name: "discovery at EKS without the cluster's name",
			args: []string{"--namespace", "mica", "--set", "controller.discoverNodeGroups=eks"},
			want: []string{"controller.eks.cluster does not say"},
		},
		{
			name: "KEDA without the controller that serves it",
			args: []string{"--namespace", "mica", "--set", "controller.enabled=false", "--set", "controller.keda.enabled=true"},
			want: []string{"the controller serves KEDA"},
		},
		{
			name: "KEDA's port for every client, without saying so",
			args: []string{"--namespace", "mica", "--set", "controller.keda.enabled=true"},
			want: []string{"names no Secret", "ca.crt", "controller.keda.tls.requireClientCertificate=false"},
		},
		{
			name: "queries of triggers for no Prometheus",
			args: []string{"--namespace", "mica", "--set", "controller.keda.prometheus.triggers=true"},
			want: []string{"does not say where Prometheus is"},
		},
		{
			name: "credentials for no Prometheus",
			args: []string{"--namespace", "mica", "--set", "controller.keda.prometheus.secretName=p"},
			want: []string{"does not say where Prometheus is"},
		},
		{
			name: "a Prometheus that is no URL",
			args: []string{"--namespace", "mica", "--set", "controller.keda.prometheus.address=prometheus:9090"},
			want: []string{"/controller/keda/prometheus/address"},
		},
		{
			name: "one port for KEDA and metrics",
			args: []string{"--namespace", "mica", "--set", "controller.keda.enabled=true,controller.keda.tls.requireClientCertificate=false", "--set", "controller.keda.port=8080"},
			want: []string{"controller.keda.port is 8080", "a port of its own"},
		},
		{
			name: "placeholders of a priority that Cluster Autoscaler ignores",
			args: []string{"--namespace", "mica", "--set", "controller.placeholder.priority=-11"},
			want: []string{"/controller/placeholder/priority"},
		},
		{
			name: "one extended resource for whole GPUs and shares",
			args: []string{"--namespace", "mica", "--set", "deviceClass.sharedExtendedResourceName=nvidia.com/gpu"},
			want: []string{`are both "nvidia.com/gpu"`, "Set one of them"},
		},
		{
			name: "a collector without a scheme",
			args: []string{"--namespace", "mica", "--set", "tracing.endpoint=collector.monitoring:4317"},
			want: []string{"/tracing/endpoint"},
		},
		{
			name: "a PodMonitor without metrics",
			args: []string{"--namespace", "mica", "--set", "podMonitor.enabled=true,kubeletPlugin.containers.plugin.metricsPort=-1"},
			want: []string{"podMonitor.enabled is true", "metricsPort is negative"},
		},
		{
			name: "a ServiceMonitor without metrics",
			args: []string{"--namespace", "mica", "--set", "serviceMonitor.enabled=true,kubeletPlugin.containers.plugin.metricsPort=-1"},
			want: []string{"serviceMonitor.enabled is true", "metricsPort is negative"},
		},
		{
			name: "two kinds of monitors",
			args: []string{"--namespace", "mica", "--set", "serviceMonitor.enabled=true,podMonitor.enabled=true"},
			want: []string{"podMonitor.enabled and serviceMonitor.enabled are both true", "Enable one of them"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			expectRefusal(t, append([]string{"template", "mica", "mica"}, test.args...), test.want)
		})
	}
}

// Helm installs definitions with a chart and never adds them in an upgrade.
func TestAnUpgradeWithoutTheKindOfPoliciesIsRefused(t *testing.T) {
	cluster := cluster{version: "v1.37.1", servesDRA: true, namespace: "mica"}
	upgrade := append(templateOn(t, cluster), "--is-upgrade")
	expectRefusal(t, upgrade, []string{"does not know the kind GPUPolicy", "kubectl apply --server-side", "gpuPolicy.create=false"})
	expectRefusal(t, append(upgrade, "--set", "gpuPolicy.create=false"), []string{"does not know the kind GPUNodeGroup", "controller.enabled=false"})
	for _, args := range [][]string{append(upgrade, "--set", "gpuPolicy.create=false"), templateOn(t, cluster)} {
		if _, stderr, err := helm(t, args...); err != nil && strings.Contains(stderr, "GPUPolicy, which") {
			t.Errorf("helm %s: %s", strings.Join(args, " "), stderr)
		}
	}
	render(t, "--namespace", "mica", "--is-upgrade") // without a cluster, nothing is known
}

func TestNamespaceDefaultIsAllowedOnRequest(t *testing.T) {
	render(t, "--namespace", "default", "--set", "allowDefaultNamespace=true")
}

func TestChartRefusesByWhatTheClusterSays(t *testing.T) {
	nvidia := deviceClass{name: "gpu.nvidia.com", release: "nvidia-dra-driver", namespace: "nvidia"}
	tests := []struct {
		name    string
		cluster cluster
		args    []string
		want    []string
	}{
		{
			name:    "without resource.k8s.io/v1",
			cluster: cluster{version: "v1.33.4"},
			want:    []string{"needs the API resource.k8s.io/v1", "(v1.33.4)", "upgrade the cluster"},
		},
		{
			name:    "with another driver's DeviceClass",
			cluster: cluster{version: "v1.37.1", servesDRA: true, class: &nvidia},
			want:    []string{`The DeviceClass "gpu.nvidia.com" exists already`, `belongs to the Helm release "nvidia-dra-driver" in the namespace "nvidia"`, "cannot share a node", "deviceClass.create=false"},
		},
		{
			name:    "with another release's DeviceClass of a product",
			cluster: cluster{version: "v1.37.1", servesDRA: true, class: &deviceClass{name: "h100.gpu.nvidia.com", release: "other", namespace: "team"}},
			args:    []string{"--set", "deviceClass.products.h100=NVIDIA H100 80GB HBM3"},
			want:    []string{`The DeviceClass "h100.gpu.nvidia.com" exists already`, `the Helm release "other" in the namespace "team"`},
		},
		{
			name:    "with a DeviceClass of a profile made by hand",
			cluster: cluster{version: "v1.37.1", servesDRA: true, class: &deviceClass{name: "small.mig.nvidia.com"}},
			args:    []string{"--set", "deviceClass.profiles.small=1g.10gb"},
			want:    []string{`The DeviceClass "small.mig.nvidia.com" exists already`, "belongs to no Helm release"},
		},
		{
			name:    "with a device plugin",
			cluster: cluster{version: "v1.37.1", servesDRA: true, daemonSets: []map[string]any{daemonSet("nvidia-device-plugin-ctr", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", 3)}},
			want:    []string{`DaemonSet "plugin" in the namespace "gpu-operator"`, "kubeletPlugin.besideDevicePlugin=true", "docs/start/move.md"},
		},
		{
			name:    "with a DeviceClass made by hand",
			cluster: cluster{version: "v1.37.1", servesDRA: true, class: &deviceClass{name: "gpu.nvidia.com"}},
			want:    []string{`The DeviceClass "gpu.nvidia.com" exists already`, "belongs to no Helm release"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			expectRefusal(t, append(templateOn(t, test.cluster), test.args...), test.want)
		})
	}
}

func daemonSet(container, image string, nodes int) map[string]any {
	type object = map[string]any
	return object{
		"kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": object{"name": "plugin", "namespace": "gpu-operator"},
		"spec":   object{"template": object{"spec": object{"containers": []object{{"name": container, "image": image}}}}},
		"status": object{"desiredNumberScheduled": nodes},
	}
}

// Only what gives GPUs out is in the way, and only before the first installation.
func TestChartIsInstalledBesideADevicePlugin(t *testing.T) {
	plugin := daemonSet("nvidia-device-plugin-ctr", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", 3)
	for name, test := range map[string]struct {
		set  map[string]any
		args []string
	}{
		"on request":              {plugin, []string{"--set", "kubeletPlugin.besideDevicePlugin=true"}},
		"by who ignores it":       {plugin, []string{"--set", "kubeletPlugin.ignoreDevicePlugin=true"}},
		"by an upgrade":           {plugin, []string{"--is-upgrade"}},
		"GPU Feature Discovery":   {daemonSet("gpu-feature-discovery", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", 3), nil},
		"a plugin without a node": {daemonSet("nvidia-device-plugin-ctr", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", 0), nil},
		"another DaemonSet":       {daemonSet("a", "registry.example.com/agent", 3), nil},
	} {
		t.Run(name, func(t *testing.T) {
			args := append(templateOn(t, cluster{version: "v1.37.1", servesDRA: true, daemonSets: []map[string]any{test.set}}), "--disable-openapi-validation")
			if _, stderr, err := helm(t, append(args, test.args...)...); err != nil && strings.Contains(stderr, "device plugin") {
				t.Errorf("it is refused:\n%s", stderr)
			}
		})
	}
}

func TestChartAcceptsItsOwnDeviceClass(t *testing.T) {
	own := deviceClass{name: "gpu.nvidia.com", release: "mica", namespace: "mica"}
	args := append(templateOn(t, cluster{version: "v1.37.1", servesDRA: true, class: &own}), "--disable-openapi-validation")
	_, stderr, err := helm(t, args...)
	// The cluster that the test plays serves none of the other kinds, and helm looks them
	// up after it has rendered the templates.
	if err != nil && !strings.Contains(stderr, "no matches for kind") {
		t.Fatalf("an upgrade of the release that owns the DeviceClass was refused: %v\n%s", err, stderr)
	}
}

func TestChartCanBePartOfAnother(t *testing.T) {
	parent := t.TempDir()
	if err := os.CopyFS(filepath.Join(parent, "charts", "mica"), os.DirFS("mica")); err != nil {
		t.Fatal(err)
	}
	chart := "apiVersion: v2\nname: parent\nversion: 0.1.0\ndependencies:\n- name: mica\n  version: \"*\"\n"
	if err := os.WriteFile(filepath.Join(parent, "Chart.yaml"), []byte(chart), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := helm(t, "template", "gpu", parent, "--namespace", "gpu", "--set", "global.team=a"); err != nil {
		t.Fatalf("render the chart as a dependency: %v\n%s", err, stderr)
	}
}

func templateOn(t *testing.T, c cluster) []string {
	t.Helper()
	return []string{"template", "mica", "mica", "--namespace", "mica", "--dry-run=server", "--kubeconfig", c.start(t)}
}

func expectRefusal(t *testing.T, args, want []string) {
	t.Helper()
	stdout, stderr, err := helm(t, args...)
	if err == nil {
		t.Fatalf("helm %s was not refused:\n%s", strings.Join(args, " "), stdout)
	}
	for _, text := range want {
		if !strings.Contains(stderr, text) {
			t.Errorf("helm %s\nrefused with:\n%s\nwhich lacks: %s", strings.Join(args, " "), stderr, text)
		}
	}
}
