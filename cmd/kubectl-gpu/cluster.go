package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// These are kubectl's limits (k8s.io/kubectl/pkg/cmd, kubeConfigFlags).
const (
	queriesPerSecond = 50
	queriesAtOnce    = 300
)

// clusterConfig returns the configuration of the cluster that the kubeconfig and flags name.
func clusterConfig(config clientcmd.ClientConfig) (*rest.Config, error) {
	cluster, err := config.ClientConfig()
	if err != nil {
		return nil, kubeconfigError(config, err)
	}
	cluster.QPS, cluster.Burst = queriesPerSecond, queriesAtOnce
	cluster.UserAgent = "kubectl-gpu/" + version()
	return cluster, nil
}

// connecter connects to the user's cluster.
type connecter func(clientcmd.ClientConfig) (client.WithWatch, error)

// newClient connects to the cluster with the user's rights.
func newClient(config clientcmd.ClientConfig) (client.WithWatch, error) {
	// Without a logger, controller-runtime logs a warning with a stack after 30 seconds.
	log.SetLogger(klog.Background())
	cluster, err := clusterConfig(config)
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	kinds, err := newMapper(cluster)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster at %s: %w", cluster.Host, err)
	}
	connected, err := client.NewWithWatch(cluster, client.Options{Scheme: scheme, Mapper: kinds})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster at %s: %w", cluster.Host, err)
	}
	return connected, nil
}

// newMapper maps the names that kubectl takes, including short names, to kinds. It reads the kinds from
// the cluster once, on first use.
func newMapper(cluster *rest.Config) (meta.RESTMapper, error) {
	discoverer, err := discovery.NewDiscoveryClientForConfig(cluster)
	if err != nil {
		return nil, err
	}
	known := memory.NewMemCacheClient(discoverer)
	return restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(known), known, nil), nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the kinds of objects: %w", err)
		}
	}
	return scheme, nil
}
