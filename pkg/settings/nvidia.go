package settings

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
)

// NVIDIAGates are the feature gates of NVIDIA's DRA driver 0.5, with what to do in Mica instead. Mica
// accepts and ignores them: values written for that driver must not end the plugin on every node.
var NVIDIAGates = map[string]string{
	"TimeSlicingSettings":       "Claims may always set a time-slice, with a GpuConfig.",
	"MPSSupport":                "Set mps.enabled=true in the chart: without it, claims for MPS are refused.",
	"PassthroughSupport":        "Mica does not offer GPUs to virtual machines: keep such nodes on NVIDIA's driver.",
	"DynamicMIG":                "A GPUPolicy decides this, by spec.shapes.mig.creation. That of the chart follows the gate.",
	"NVMLDeviceHealthCheck":     "Mica has no switch for health checks.",
	"DeviceMetadata":            "Mica writes metadata only of MIG partitions, and always does.",
	"DRAListTypeAttributes":     "Mica publishes attributes with a single value.",
	"FabricManagerPartitioning": "Mica activates no partitions of Fabric Manager: request GPUs with the same nvlinkGroup.",
	"ConsumableShares":          "Set consumableShares in the chart, or whole.consumableShares in a GPUPolicy.",
	"ComputeDomainCliques":      computeDomains,
	"CrashOnNVLinkFabricErrors": computeDomains,
	"IMEXDaemonsWithDNSNames":   computeDomains,
	"HostManagedIMEXDaemon":     computeDomains,
}

const computeDomains = "ComputeDomains stay with NVIDIA's driver: install its chart as well, with resources.gpus.enabled=false."

// NVIDIAFlags are the flags of NVIDIA's gpu-kubelet-plugin 0.5 that Mica's plugin lacks or names
// differently, with what to do instead.
var NVIDIAFlags = map[string]string{
	"additional-xids-to-ignore": "Mica does not watch XIDs.",
	"consumable-shares":         "Set whole.consumableShares in a GPUPolicy.",
	"host_driver-root":          "Use --nvidia-driver-root.",
	"http-endpoint":             "Use --metrics-port.",
	"image-name":                "Mica's plugin starts no pods.",
	"image-pull-policy":         "Mica's plugin starts no pods.",
	"image-pull-secrets":        "Mica's plugin starts no pods.",
	"metrics-path":              "The path is always /metrics.",
	"namespace":                 "Mica's plugin starts no pods.",
	"service-account-name":      "Mica's plugin starts no pods.",
}

// gates is the flag --feature-gates. It sets those of the logging library, and only records NVIDIA's.
type gates struct {
	logging featuregate.MutableVersionedFeatureGate
	nvidia  map[string]bool
}

// Set implements pflag.Value.
func (g *gates) Set(value string) error {
	own := g.logging.GetAll()
	set := map[string]bool{}
	for assignment := range strings.SplitSeq(value, ",") {
		if assignment = strings.TrimSpace(assignment); assignment == "" {
			continue // NVIDIA's chart ends the list with a comma
		}
		name, setting, _ := strings.Cut(assignment, "=")
		enabled, err := strconv.ParseBool(setting)
		_, isOwn := own[featuregate.Feature(name)]
		_, isNVIDIAs := NVIDIAGates[name]
		switch {
		case !isOwn && !isNVIDIAs:
			return fmt.Errorf("the feature gate %q is unknown: remove it, or choose from %v", name, slices.Sorted(maps.Keys(own)))
		case err != nil:
			return fmt.Errorf("the feature gate %s is %q: set it to true or false", name, setting)
		case isOwn:
			set[name] = enabled
		default:
			g.nvidia[name] = enabled
		}
	}
	return g.logging.SetFromMap(set)
}

// String implements pflag.Value.
func (g *gates) String() string { return "" }

// Type implements pflag.Value.
func (g *gates) Type() string { return "mapStringBool" }

// AddNVIDIAFlags adds NVIDIAFlags, hidden from the help.
func AddNVIDIAFlags(set *pflag.FlagSet) {
	for name, instead := range NVIDIAFlags {
		set.String(name, "", instead)
		_ = set.MarkHidden(name) // fails for unknown flags only
	}
}

// WarnOfNVIDIAs logs the settings of NVIDIA's driver that Mica ignores.
func (l *Logging) WarnOfNVIDIAs(log klog.Logger, set *pflag.FlagSet) {
	const warning = "Ignoring a setting of NVIDIA's DRA driver"
	set.Visit(func(flag *pflag.Flag) {
		if instead, isNVIDIAs := NVIDIAFlags[flag.Name]; isNVIDIAs && flag.Hidden {
			log.Info(warning, "flag", "--"+flag.Name, "instead", instead)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(l.gates.nvidia)) {
		log.Info(warning, "featureGate", name, "value", l.gates.nvidia[name], "instead", NVIDIAGates[name])
	}
}
