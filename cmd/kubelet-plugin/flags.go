package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/settings"
	"github.com/mica-gpu/mica/pkg/slice"
)

// flags are the plugin's settings. Each has an environment variable; the command line has
// precedence.
type flags struct {
	nodeName, driverName, podUID string

	kubeconfig   string
	kubeAPIQPS   float32
	kubeAPIBurst int

	cdiRoot, registrarDir, pluginsDir         string
	hostDriverRoot, localDriverRoot, hookPath string
	hostRoot, hookDir                         string
	mpsRoot                                   string
	healthPort, metricsPort                   int
	deviceMetrics, claimMetrics               bool
	ignoreDevicePlugin                        bool
	healthQuiet                               time.Duration
}

// environment has the variables whose names differ from their flags': charts of GPU drivers set them.
var environment = map[string]string{"container-driver-root": "DRIVER_ROOT_CTR_PATH"}

// addHardware adds the flags of the hardware.
func (f *flags) addHardware(set *pflag.FlagSet) {
	set.StringVar(&f.hostDriverRoot, "nvidia-driver-root", "/", "Root of the NVIDIA driver installation on the host, such as / or /run/nvidia/driver.")
	set.StringVar(&f.localDriverRoot, "container-driver-root", "/driver-root", "The same installation as this process sees it.")
	set.StringVar(&f.hostRoot, "host-root", "", "Directory in which this process sees the host's /dev as dev, for driver installations that have no /dev of their own. Empty: it sees none.")
}

// addState adds the flags for preparing claims on this node.
func (f *flags) addState(set *pflag.FlagSet) {
	set.StringVar(&f.driverName, "driver-name", slice.DefaultDriver, "Name of the driver in claims, slices and device classes.")
	set.StringVar(&f.cdiRoot, "cdi-root", "/var/run/cdi", "Directory that the container runtime reads CDI specifications from.")
	set.StringVar(&f.pluginsDir, "kubelet-plugins-directory-path", "/var/lib/kubelet/plugins", "Directory below which the driver keeps its socket and state.")
	set.StringVar(&f.hookPath, "nvidia-cdi-hook-path", "", "Path of nvidia-cdi-hook on the host. Empty: the one in the plugin's image is copied to the host.")
	set.StringVar(&f.hookDir, "nvidia-cdi-hook-directory", "", "Directory on the host, mounted at the same path, that gets the copy of nvidia-cdi-hook. Empty: the driver's state directory.")
	set.StringVar(&f.mpsRoot, "mps-root", "", "Directory shared with this node's MPS supervisor, at the same path on the host. Empty: the node has none.")
}

// addCluster adds the flags of a plugin in a cluster.
func (f *flags) addCluster(set *pflag.FlagSet) {
	f.addState(set)
	set.StringVar(&f.nodeName, "node-name", "", "Name under which kubelet registered this node. Required.")
	set.StringVar(&f.podUID, "pod-uid", "", "UID of the plugin's pod, which lets two pods overlap during a rolling update.")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "File with the API server's address and credentials. Empty: those of the pod.")
	set.Float32Var(&f.kubeAPIQPS, "kube-api-qps", 500, "Requests a second to the API server, averaged.")
	set.IntVar(&f.kubeAPIBurst, "kube-api-burst", 1000, "Requests to the API server at once.")
	set.StringVar(&f.registrarDir, "kubelet-registrar-directory-path", "/var/lib/kubelet/plugins_registry", "Directory in which kubelet looks for plugins to register.")
	set.BoolVar(&f.ignoreDevicePlugin, "ignore-device-plugin", false, "Offer GPUs also on a node whose status has GPUs of a device plugin. A device plugin that is there gives the same GPUs to other pods.")
	set.DurationVar(&f.healthQuiet, "health-quiet-period", driver.DefaultHealthQuiet, "How long the cause of a GPU's fault has to be gone before the GPU gets claims again.")
	set.IntVar(&f.healthPort, "healthcheck-port", 51515, "TCP port of the gRPC health service. 0: any free port. Negative: none.")
	set.IntVar(&f.metricsPort, "metrics-port", 8080, "TCP port of /metrics. 0: any free port. Negative: none.")
	set.BoolVar(&f.deviceMetrics, "device-metrics", true, "Ask NVML how busy GPUs and their partitions are, those of prepared claims every 2 seconds, and serve it at /metrics. False: never ask.")
	set.BoolVar(&f.claimMetrics, "claim-metrics", true, "Serve at /metrics which claims and pods have which device. False: no series has the name of a claim or pod.")
	settings.AddNVIDIAFlags(set)
}

// validate refuses settings with which the plugin cannot work.
func (f *flags) validate() error {
	if f.nodeName == "" {
		return errors.New("no node name: set --node-name or NODE_NAME, in a pod from fieldRef spec.nodeName")
	}
	if f.kubeAPIQPS <= 0 || f.kubeAPIBurst <= 0 {
		return fmt.Errorf("--kube-api-qps is %v and --kube-api-burst is %d: both must be positive", f.kubeAPIQPS, f.kubeAPIBurst)
	}
	if f.healthQuiet <= 0 {
		return fmt.Errorf("--health-quiet-period is %v: it must be positive", f.healthQuiet)
	}
	for name, port := range map[string]int{"healthcheck-port": f.healthPort, "metrics-port": f.metricsPort} {
		if err := settings.CheckPort(name, port); err != nil {
			return err
		}
	}
	return nil
}
