package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubediscovery "k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/crd"
	"github.com/mica-gpu/mica/pkg/elastic/forecast"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/scaleout/control"
	"github.com/mica-gpu/mica/pkg/scaleout/eks"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/pkg/tracing"
	"github.com/mica-gpu/mica/pkg/verdict"
)

// component is the source of Events.
const component = "mica-controller"

// serve runs the controller until ctx ends.
func serve(ctx context.Context, f *flags) error {
	if err := f.validate(); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Starting", "version", version(), "driver", f.driverName, "namespace", f.namespace)
	saveMemory()
	stopTracing, err := tracing.Start(ctx, component, version(), "k8s.namespace.name", f.namespace)
	if err != nil {
		return err
	}
	defer stopTracing()
	config, err := clientConfig(f)
	if err != nil {
		return err
	}
	nodegroups, err := newNodegroups(ctx, f)
	if err != nil {
		return err
	}
	m, err := newManager(ctx, f, config)
	if err != nil {
		return err
	}
	if err := addLoop(ctx, f, m, nodegroups); err != nil {
		return err
	}
	return m.Start(ctx)
}

func clientConfig(f *flags) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if f.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w: run in a pod with a service account, or set --kubeconfig to a readable kubeconfig file", err)
	}
	config.QPS, config.Burst = f.kubeAPIQPS, f.kubeAPIBurst
	config.UserAgent = component + "/" + version()
	return config, nil
}

func newManager(ctx context.Context, f *flags, config *rest.Config) (manager.Manager, error) {
	ctrl.SetLogger(klog.FromContext(ctx))
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the kinds of the API: %w", err)
		}
	}
	m, err := manager.New(config, manager.Options{
		Scheme: scheme,
		Logger: klog.FromContext(ctx),
		Cache:  cacheOptions(f),
		// A pass must see the writes of the one before: see package control.
		Client:                        client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: ptr.To(true)}},
		Metrics:                       metricsserver.Options{BindAddress: address(f.metricsPort)},
		HealthProbeBindAddress:        address(f.healthPort),
		LeaderElection:                f.leaderElect,
		LeaderElectionID:              f.leaseName,
		LeaderElectionNamespace:       f.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &f.leaseDuration,
		RenewDeadline:                 &f.renewDeadline,
		RetryPeriod:                   &f.retryPeriod,
		BaseContext:                   func() context.Context { return ctx },
	})
	if err != nil {
		return nil, fmt.Errorf("set up the controller: %w: check that the API server answers, and that it is Kubernetes 1.34 or newer", err)
	}
	return m, nil
}

// newNodegroups is nil without a region or an endpoint.
func newNodegroups(ctx context.Context, f *flags) (*eks.Client, error) {
	if !f.callsEKS() {
		return nil, nil
	}
	return eks.New(ctx, eks.Options{Region: f.awsRegion, Endpoint: f.eksEndpoint, StartupTaints: f.startup})
}

func addLoop(ctx context.Context, f *flags, m manager.Manager, nodegroups *eks.Client) error {
	options := control.Options{
		Driver:            f.driverName,
		Client:            m.GetClient(),
		Live:              m.GetAPIReader(),
		Recorder:          m.GetEventRecorder(component),
		Clock:             clock.RealClock{},
		Placeholder:       f.placeholder,
		Autoscaler:        types.NamespacedName{Namespace: f.autoscalerNamespace, Name: f.autoscalerName},
		DiscoverNodes:     f.discovery.value != discoverOff,
		StartupTaints:     f.startup,
		FailClosed:        f.budgetsFailClosed,
		DiscoveredPairing: v1alpha1.Pairing(f.discoveredPairing.value),
	}
	definitions, err := newDefinitions(m)
	if err != nil {
		return err
	}
	if err := m.Add(definitions); err != nil {
		return err
	}
	options.Outdated = definitions.Sentence
	options.Placeholder.Namespace = cmp.Or(f.placeholder.Namespace, f.namespace)
	if nodegroups != nil {
		options.Nodegroups = nodegroups // a nil pointer in an interface is not nil
	}
	if f.discovery.value == discoverEKS {
		if err := m.Add(newDiscovery(f, m, nodegroups)); err != nil {
			return err
		}
	}
	prometheus, err := newPrometheus(f)
	if err != nil {
		return err
	}
	var loop *control.Loop
	if f.kedaPort >= 0 {
		plans := forecast.New(func() { loop.Enqueue() }, clock.RealClock{})
		options.Forecast = plans
		if !f.prometheusTriggers {
			prometheus = nil
		}
		if err := addKEDA(ctx, f, m, plans, prometheus); err != nil {
			return err
		}
	}
	loop = control.New(options)
	if err := loop.Watch(ctx, m.GetCache()); err != nil {
		return err
	}
	if err := m.Add(loop); err != nil {
		return err
	}
	if options.Forecast != nil {
		if err := m.Add(loop.Follower()); err != nil {
			return err
		}
	}
	verdicts := verdict.New(m.GetClient())
	if err := verdicts.Watch(ctx, m.GetCache()); err != nil {
		return err
	}
	if err := m.Add(verdicts); err != nil {
		return err
	}
	if err := addUsages(f, m); err != nil {
		return err
	}
	return addProbes(m, loop)
}

// addUsages serves the utilization of devices for kubectl gpu.
func addUsages(f *flags, m manager.Manager) error {
	if f.metricsPort < 0 {
		return nil
	}
	options, err := usageOptions(f, m)
	if err != nil {
		return err
	}
	return m.AddMetricsServerExtraHandler(usage.Path, usage.NewServer(options))
}

// newDefinitions compares the CustomResourceDefinitions with this version.
func newDefinitions(m manager.Manager) (*crd.Watcher, error) {
	discovery, err := kubediscovery.NewDiscoveryClientForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("set up the check of the CustomResourceDefinitions: %w", err)
	}
	return &crd.Watcher{Read: func(ctx context.Context) ([]byte, error) {
		return discovery.RESTClient().Get().AbsPath(crd.Path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	}}, nil
}

// newDiscovery declares the node groups with GPUs that EKS lists.
func newDiscovery(f *flags, m manager.Manager, nodegroups *eks.Client) *control.Discovery {
	return &control.Discovery{
		Client:  m.GetClient(),
		Clock:   clock.RealClock{},
		Pairing: v1alpha1.Pairing(f.discoveredPairing.value),
		List: func(ctx context.Context) ([]view.Discovered, error) {
			return nodegroups.Discover(ctx, f.eksCluster, hasGPUs)
		},
	}
}

// hasGPUs includes types that the catalogue cannot predict: their groups report that in their status.
func hasGPUs(instanceType string) bool {
	_, err := catalog.InstanceByType(instanceType)
	return err == nil || errors.Is(err, catalog.ErrNotPredicted)
}

// addProbes serves liveness, which fails if the loop hangs, and readiness, which needs a synced cache.
func addProbes(m manager.Manager, loop *control.Loop) error {
	if err := m.AddHealthzCheck("loop", func(*http.Request) error { return loop.Alive() }); err != nil {
		return err
	}
	return m.AddReadyzCheck("cache", func(r *http.Request) error {
		if !m.GetCache().WaitForCacheSync(r.Context()) {
			return fmt.Errorf("the cache is not synced yet: see the controller's log for kinds that it may not list")
		}
		return nil
	})
}
