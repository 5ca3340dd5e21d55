package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/slice"
)

// flags are the controller's settings. The environment variable of a flag sets its default.
type flags struct {
	driverName, namespace string

	kubeconfig   string
	kubeAPIQPS   float32
	kubeAPIBurst int

	leaderElect                               bool
	leaseName                                 string
	leaseDuration, renewDeadline, retryPeriod time.Duration

	placeholder                         pair.PlaceholderOptions
	autoscalerNamespace, autoscalerName string
	startup                             template.StartupTaints
	awsRegion, eksEndpoint, eksCluster  string
	discovery, discoveredPairing        choice
	budgetsFailClosed                   bool

	kedaPort                               int
	kedaTLSDir, kedaProfiles               string
	kedaRequiresCertificate                bool
	prometheusAddress, prometheusSecretDir string
	prometheusTriggers                     bool
	pluginPods                             string

	healthPort, metricsPort int
}

// addAPI adds the flags of the API server.
func (f *flags) addAPI(set *pflag.FlagSet) {
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "File with the API server's address and credentials. Empty: those of the pod.")
	set.Float32Var(&f.kubeAPIQPS, "kube-api-qps", 100, "Average requests per second to the API server.")
	set.IntVar(&f.kubeAPIBurst, "kube-api-burst", 200, "Requests to the API server at once.")
}

// addCluster adds the flags of the process in its cluster.
func (f *flags) addCluster(set *pflag.FlagSet) {
	set.StringVar(&f.driverName, "driver-name", slice.DefaultDriver, "Name of the driver in claims, slices and device classes.")
	set.StringVar(&f.namespace, "namespace", "", "Namespace of this controller, and of its lease. Required.")
	f.addAPI(set)
	set.BoolVar(&f.leaderElect, "leader-elect", true, "Elect a leader: one of several replicas works.")
	set.StringVar(&f.leaseName, "leader-elect-resource-name", "mica-controller", "Name of the lease.")
	set.DurationVar(&f.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long other replicas wait before they take the lease of a silent leader.")
	set.DurationVar(&f.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a leader tries to renew its lease before it stops.")
	set.DurationVar(&f.retryPeriod, "leader-elect-retry-period", 2*time.Second, "How often replicas try to get or renew the lease.")
	set.IntVar(&f.healthPort, "healthcheck-port", 8081, "TCP port of /healthz and /readyz. 0: any free port. Negative: none.")
	set.IntVar(&f.metricsPort, "metrics-port", 8080, "TCP port of /metrics. 0: any free port. Negative: none.")
}

// addScaleOut adds the flags of scale-out.
func (f *flags) addScaleOut(set *pflag.FlagSet) {
	set.StringVar(&f.placeholder.Namespace, "placeholder-namespace", "", "Namespace of placeholders. Empty: that of this controller.")
	set.StringVar(&f.placeholder.Image, "placeholder-image", "", "Image of placeholders. It must do nothing when its argument is pause, as this controller's does. Required.")
	set.StringVar(&f.placeholder.PriorityClass, "placeholder-priority-class", "", "Priority class of placeholders, with a value from -9 to -1. Empty: none.")
	set.DurationVar(&f.placeholder.Grace, "placeholder-grace", pair.DefaultGrace, "How long to wait for Cluster Autoscaler's Event about a pod before creating a placeholder.")
	set.StringVar(&f.autoscalerNamespace, "cluster-autoscaler-namespace", autoscaler.Namespace, "Namespace of Cluster Autoscaler's status.")
	set.StringVar(&f.autoscalerName, "cluster-autoscaler-status-name", autoscaler.StatusName, "Name of the ConfigMap with Cluster Autoscaler's status.")
	set.StringArrayVar(&f.startup.Keys, "startup-taint", nil, "Key of a further startup taint, as in Cluster Autoscaler's flag. Can be repeated.")
	set.StringArrayVar(&f.startup.Prefixes, "startup-taint-prefix", nil, "Prefix of keys of startup taints, as in Cluster Autoscaler's flag. Can be repeated.")
	set.BoolVar(&f.budgetsFailClosed, "budgets-fail-closed", false, "Keep pods under a GPUBudget from Cluster Autoscaler for ever, also while no controller runs. Otherwise they are left to it an hour after the controller has last run.")
	set.StringVar(&f.awsRegion, "aws-region", "", "AWS region of the EKS API. Empty, with --eks-endpoint empty as well: EKS is not called.")
	set.StringVar(&f.eksEndpoint, "eks-endpoint", "", "URL of the EKS API. Empty: that of the region.")
	set.StringVar(&f.eksCluster, "eks-cluster", "", "Name of this cluster at EKS. Needed by --discover-node-groups=eks.")
	set.Var(&f.discoveredPairing, "discovered-pairing", "Pairing of groups that are discovered from now on: observe (report what they would need) or placeholder. Existing groups keep theirs.")
	set.Var(&f.discovery, "discover-node-groups", "Discovery of undeclared node groups: off, nodes (managed node groups of live nodes with our devices), eks (those, and groups with GPUs that EKS lists).")
}

// addKEDA adds the flags of KEDA's external scaler.
func (f *flags) addKEDA(set *pflag.FlagSet) {
	set.IntVar(&f.kedaPort, "keda-port", -1, "TCP port of KEDA's external scaler. 0: any free port. Negative: none.")
	set.StringVar(&f.kedaTLSDir, "keda-tls-dir", "", "Directory with tls.crt and tls.key of the scaler, and ca.crt. Empty: plain text.")
	set.BoolVar(&f.kedaRequiresCertificate, "keda-require-client-certificate", true, "Serve only clients with a certificate that ca.crt in --keda-tls-dir has signed. false: every client that reaches the port.")
	set.StringVar(&f.kedaProfiles, "keda-profiles", "", "File with profiles that differ from Mica's own.")
	set.StringVar(&f.prometheusAddress, "prometheus-address", "", "URL of the Prometheus that answers the queries of triggers, with --prometheus-triggers.")
	set.BoolVar(&f.prometheusTriggers, "prometheus-triggers", false, "Answer the queries of triggers: a user with the right to write a ScaledObject can query any number.")
	set.StringVar(&f.prometheusSecretDir, "prometheus-secret-dir", "", "Directory with a bearer token for Prometheus in token, and its authority in ca.crt, each where it is needed.")
	set.StringVar(&f.pluginPods, "plugin-pods", "app.kubernetes.io/component=kubelet-plugin", "Labels of the plugin's pods in --namespace, whose metrics have the utilization of devices.")
}

// Values of --discover-node-groups.
const (
	discoverOff   = "off"
	discoverNodes = "nodes"
	discoverEKS   = "eks"
)

func newFlags() *flags {
	return &flags{
		discovery:         choice{discoverNodes, []string{discoverOff, discoverNodes, discoverEKS}},
		discoveredPairing: choice{string(v1alpha1.PairingObserve), []string{string(v1alpha1.PairingObserve), string(v1alpha1.PairingPlaceholder)}},
	}
}

// choice is a flag with a few values.
type choice struct {
	value   string
	allowed []string
}

// String implements pflag.Value.
func (c *choice) String() string { return c.value }

// Type implements pflag.Value.
func (c *choice) Type() string { return strings.Join(c.allowed, "|") }

// Set implements pflag.Value.
func (c *choice) Set(value string) error {
	if !slices.Contains(c.allowed, value) {
		last := len(c.allowed) - 1
		return fmt.Errorf("unknown value %q: use %s or %s", value, strings.Join(c.allowed[:last], ", "), c.allowed[last])
	}
	c.value = value
	return nil
}
