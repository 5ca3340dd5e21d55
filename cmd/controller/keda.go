package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/mica-gpu/mica/pkg/elastic/deletioncost"
	"github.com/mica-gpu/mica/pkg/elastic/forecast"
	"github.com/mica-gpu/mica/pkg/elastic/keda"
	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/scaletarget"
	"github.com/mica-gpu/mica/pkg/elastic/standby"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// Files in the directories of Secrets.
const (
	certificateFile = "tls.crt"
	keyFile         = "tls.key"
	authorityFile   = "ca.crt"
	tokenFile       = "token"
)

// addKEDA serves KEDA's external scaler from every replica. The loop forecasts room for it; in replicas that do not lead, the
// loop's follower does.
func addKEDA(ctx context.Context, f *flags, m manager.Manager, plans *forecast.Forecast, prometheus keda.Prometheus) error {
	profiles, err := profile.NewSource(f.kedaProfiles, clock.RealClock{})
	if err != nil {
		return err
	}
	targets, err := newTargets(m)
	if err != nil {
		return err
	}
	workloads := workload.New(m.GetCache(), f.driverName, targets)
	if err := workloads.Observe(ctx, m.GetCache()); err != nil {
		return err
	}
	usages, err := newUsages(ctx, f, m)
	if err != nil {
		return err
	}
	costs, err := newCosts(ctx, m, workloads, usages)
	if err != nil {
		return err
	}
	gates := standby.NewKeeper(m.GetClient(), m.GetCache(), clock.RealClock{})
	options := keda.ScalerOptions{
		Sources:  keda.Sources{Workloads: workloads, Usages: usages, Forecast: plans, Prometheus: prometheus},
		Profiles: profiles,
		Gates:    gates,
		Costs:    costs,
		Recorder: m.GetEventRecorder(component),
		Clock:    clock.RealClock{},
	}
	scaler := keda.NewScaler(options)
	metrics.Registry.MustRegister(scaler.Collectors()...)
	server, err := keda.NewServer(keda.Options{Address: address(f.kedaPort), TLS: f.kedaFiles(), Clock: clock.RealClock{}}, scaler)
	if err != nil {
		return err
	}
	for _, runs := range []manager.Runnable{profiles, usages, gates, server} {
		if err := m.Add(runs); err != nil {
			return fmt.Errorf("serve KEDA: %w", err)
		}
	}
	return nil
}

// newTargets reads scale targets without the cache, which would list all objects of their kinds. It has a client of its own, so
// that KEDA's requests have their own rate limit.
func newTargets(m manager.Manager) (*scaletarget.Reader, error) {
	own, err := client.New(rest.CopyConfig(m.GetConfig()), client.Options{Scheme: m.GetScheme(), Mapper: m.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("read what KEDA scales: %w", err)
	}
	return scaletarget.NewReader(own, clock.RealClock{}, func(resource schema.GroupResource) string {
		name, _, _ := strings.Cut(resource.Resource, "/")
		return fmt.Sprintf("add {group: %s, resource: %s} to controller.keda.scaleTargets of Mica's chart", resource.Group, name)
	}), nil
}

// newCosts writes deletion costs for the workloads that ask for it.
func newCosts(ctx context.Context, m manager.Manager, workloads *workload.Index, usages *usage.Meter) (*deletioncost.Writer, error) {
	if err := deletioncost.Index(ctx, m.GetFieldIndexer()); err != nil {
		return nil, err
	}
	costs := deletioncost.New(deletioncost.Options{Workloads: workloads, Usages: usages, Client: m.GetClient(), Reader: m.GetCache(), Clock: clock.RealClock{}})
	return costs, m.Add(costs)
}

func usageOptions(f *flags, m manager.Manager) (usage.Options, error) {
	plugin, err := labels.Parse(f.pluginPods)
	if err != nil {
		return usage.Options{}, fmt.Errorf("read --plugin-pods: %w", err)
	}
	return usage.Options{Driver: f.driverName, Reader: m.GetCache(), Namespace: f.namespace, Plugin: plugin, Clock: clock.RealClock{}}, nil
}

// newUsages reads the utilization of devices from the plugin's pods.
func newUsages(ctx context.Context, f *flags, m manager.Manager) (*usage.Meter, error) {
	options, err := usageOptions(f, m)
	if err != nil {
		return nil, err
	}
	if err := usage.Index(ctx, m.GetFieldIndexer(), options); err != nil {
		return nil, err
	}
	return usage.New(options), nil
}

// newPrometheus is nil without --prometheus-address.
func newPrometheus(f *flags) (keda.Prometheus, error) {
	if f.prometheusAddress == "" {
		return nil, nil
	}
	options := keda.PrometheusOptions{Address: f.prometheusAddress, Clock: clock.RealClock{}}
	if f.prometheusSecretDir != "" {
		var err error
		if options.TokenFile, err = optional(f.prometheusSecretDir, tokenFile); err != nil {
			return nil, err
		}
		if options.CAFile, err = optional(f.prometheusSecretDir, authorityFile); err != nil {
			return nil, err
		}
	}
	return keda.NewPrometheus(options)
}

// kedaFiles are empty for plain text.
func (f *flags) kedaFiles() keda.Files {
	if f.kedaTLSDir == "" {
		return keda.Files{}
	}
	files := keda.Files{Certificate: filepath.Join(f.kedaTLSDir, certificateFile), Key: filepath.Join(f.kedaTLSDir, keyFile)}
	if f.kedaRequiresCertificate {
		files.ClientCA = filepath.Join(f.kedaTLSDir, authorityFile)
	}
	return files
}

// optional is the path of a file of a mounted Secret. Empty: the Secret lacks it.
func optional(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	} else if !os.IsNotExist(err) {
		return "", fmt.Errorf("look for %s: %w", path, err)
	}
	if _, err := fs.Stat(os.DirFS(dir), "."); err != nil {
		return "", fmt.Errorf("look for %s in --prometheus-secret-dir: %w: mount the Secret there", name, err)
	}
	return "", nil
}
