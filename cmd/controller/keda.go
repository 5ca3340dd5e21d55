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

	"github.com/mica-gpu/mica/pkg/elastic/deletioncost"
	"github.com/mica-gpu/mica/pkg/elastic/forecast"
	"github.com/mica-gpu/mica/pkg/elastic/keda"
	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/scaletarget"
	"github.com/mica-gpu/mica/pkg/elastic/standby"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// What the directories of Secrets have.
const (
	certificateFile = "tls.crt"
	keyFile         = "tls.key"
	authorityFile   = "ca.crt"
	tokenFile       = "token"
)

// addKEDA serves KEDA's external scaler from every replica. What it says of room is forecast by
// the loop, and in a replica that does not lead by the loop's follower.
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
	costs, err := newCosts(ctx, f, m, workloads, usages)
	if err != nil {
		return err
	}
	gates := standby.NewKeeper(m.GetClient(), m.GetCache(), clock.RealClock{})
	options := keda.ScalerOptions{
		Sources:  keda.Sources{Workloads: workloads, Usages: usages, Forecast: plans, Prometheus: prometheus},
		Profiles: profiles,
		Gates:    gates,
		Recorder: m.GetEventRecorder(component),
		Clock:    clock.RealClock{},
	}
	if costs != nil {
		options.Costs = costs // a nil writer in it would not be nil
	}
	server, err := keda.NewServer(keda.Options{Address: address(f.kedaPort), TLS: f.kedaFiles(), Clock: clock.RealClock{}}, keda.NewScaler(options))
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

// newTargets asks the API server for objects of kinds that nobody has named here: the cache would
// have to list them all. KEDA's questions wait for no other requests, and no others for them.
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

// newCosts is nil where nobody is to say which replica goes first.
func newCosts(ctx context.Context, f *flags, m manager.Manager, workloads *workload.Index, usages *usage.Meter) (*deletioncost.Writer, error) {
	if !f.podDeletionCost {
		return nil, nil
	}
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

// newUsages asks the plugin's pods how busy their devices are.
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

// newPrometheus is nil where none is to be asked.
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

// headroomQueries asks for GPUHeadrooms, which are an administrator's.
type headroomQueries struct{ prometheus keda.Prometheus }

func (q headroomQueries) Query(ctx context.Context, query string) (float64, error) {
	return q.prometheus.Query(ctx, "", query)
}

// kedaFiles is nothing where the scaler speaks plain text.
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

// optional is the path of a file of a mounted Secret, or empty where the Secret lacks it.
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
