package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

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
		return nil, kubeconfigError(config, err)
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
	// Without a logger, the library complains after 30 seconds, with a stack.
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

// fleet is a connection for who lists GPUs.
type fleet struct {
	client.WithWatch
	// sliceAnswers gives a page of ResourceSlices as the API server has sent it.
	sliceAnswers func(context.Context, metav1.ListOptions) ([]byte, error)
}

func newFleet(config clientcmd.ClientConfig) (*fleet, error) {
	connected, err := newClient(config)
	if err != nil {
		return nil, err
	}
	cluster, err := clusterConfig(config)
	if err != nil {
		return nil, err
	}
	cluster.ContentType = runtime.ContentTypeProtobuf
	cluster.AcceptContentTypes = runtime.ContentTypeProtobuf
	resources, err := resourceclient.NewForConfig(cluster)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster at %s: %w", cluster.Host, err)
	}
	return &fleet{WithWatch: connected, sliceAnswers: func(ctx context.Context, o metav1.ListOptions) ([]byte, error) {
		return resources.RESTClient().Get().Resource("resourceslices").VersionedParams(&o, clientgoscheme.ParameterCodec).DoRaw(ctx)
	}}, nil
}

// newMapper knows all kinds of the cluster by the names that kubectl takes, also the short ones. It
// asks once, when it is asked itself.
func newMapper(cluster *rest.Config) (meta.RESTMapper, error) {
	asked, err := discovery.NewDiscoveryClientForConfig(cluster)
	if err != nil {
		return nil, err
	}
	known := memory.NewMemCacheClient(asked)
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
