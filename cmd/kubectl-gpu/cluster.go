package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// A command asks a few hundred pages at most, and is to wait for the API server and not for itself:
// kubectl's own limits (k8s.io/kubectl/pkg/cmd, kubeConfigFlags) are for this, too.
const (
	queriesPerSecond = 50
	queriesAtOnce    = 300
)

// clusterConfig says how to reach the cluster that the user means.
func clusterConfig(config clientcmd.ClientConfig) (*rest.Config, error) {
	cluster, err := config.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	cluster.QPS, cluster.Burst = queriesPerSecond, queriesAtOnce
	cluster.UserAgent = "kubectl-gpu/" + version()
	return cluster, nil
}

func newReader(config clientcmd.ClientConfig) (client.Reader, error) {
	return newClient(config)
}

// newClient connects to the cluster with the user's rights.
func newClient(config clientcmd.ClientConfig) (client.WithWatch, error) {
	cluster, err := clusterConfig(config)
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	connected, err := client.NewWithWatch(cluster, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster at %s: %w", cluster.Host, err)
	}
	return connected, nil
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
