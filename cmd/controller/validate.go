package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/mica-gpu/mica/pkg/settings"
)

// validate refuses settings that cannot work.
func (f *flags) validate() error {
	if f.namespace == "" {
		return errors.New("no namespace: set --namespace or NAMESPACE, in a pod from fieldRef metadata.namespace")
	}
	if f.driverName == "" {
		return errors.New("--driver-name is empty: give the name under which the nodes publish their GPUs")
	}
	if f.placeholder.Image == "" {
		return errors.New("no image for placeholders: set --placeholder-image or PLACEHOLDER_IMAGE to the image of this controller")
	}
	if f.placeholder.Grace <= 0 {
		return fmt.Errorf("--placeholder-grace is %s: it must be positive, or placeholders are created before Cluster Autoscaler can act by itself", f.placeholder.Grace)
	}
	if slices.Contains(f.startup.Keys, "") || slices.Contains(f.startup.Prefixes, "") {
		return errors.New("--startup-taint or --startup-taint-prefix is empty: give a taint's key, or a prefix of keys, or leave the flag out")
	}
	if f.kubeAPIQPS <= 0 || f.kubeAPIBurst <= 0 {
		return fmt.Errorf("--kube-api-qps is %v and --kube-api-burst is %d: both must be positive", f.kubeAPIQPS, f.kubeAPIBurst)
	}
	if f.discovery.value == discoverEKS && (f.eksCluster == "" || !f.callsEKS()) {
		return errors.New("--discover-node-groups is eks: set --eks-cluster to the cluster's name at EKS, and --aws-region or AWS_REGION")
	}
	if !(f.leaseDuration > f.renewDeadline && f.renewDeadline > f.retryPeriod && f.retryPeriod > 0) {
		return fmt.Errorf("--leader-elect-lease-duration is %s, --leader-elect-renew-deadline %s and --leader-elect-retry-period %s: each must be longer than the next",
			f.leaseDuration, f.renewDeadline, f.retryPeriod)
	}
	if f.kedaPort >= 0 && f.kedaRequiresCertificate && f.kedaTLSDir == "" {
		return errors.New("--keda-port is set, but no --keda-tls-dir with tls.crt, tls.key and ca.crt, by which clients are known: set it, or serve every client that reaches the port with --keda-require-client-certificate=false")
	}
	if f.prometheusTriggers && f.prometheusAddress == "" {
		return errors.New("--prometheus-triggers is set, but --prometheus-address is not: set it to the URL of Prometheus")
	}
	if _, err := labels.Parse(f.pluginPods); err != nil {
		return fmt.Errorf("--plugin-pods is %q: %w: give labels as key=value,key=value", f.pluginPods, err)
	}
	if f.prometheusSecretDir != "" && f.prometheusAddress == "" {
		return errors.New("--prometheus-secret-dir is set, but --prometheus-address is not: set it to the URL of Prometheus")
	}
	return errors.Join(settings.CheckPort("keda-port", f.kedaPort), settings.CheckPort("healthcheck-port", f.healthPort), settings.CheckPort("metrics-port", f.metricsPort))
}

func (f *flags) callsEKS() bool { return f.awsRegion != "" || f.eksEndpoint != "" }

// address is in controller-runtime's format. "0" means none.
func address(port int) string {
	if port < 0 {
		return "0"
	}
	return ":" + strconv.Itoa(port)
}
