package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/pkg/crd"
)

// newSurvey connects to the cluster with the user's rights.
func newSurvey(config clientcmd.ClientConfig) (*survey, error) {
	reader, err := newClient(config)
	if err != nil {
		return nil, err
	}
	cluster, err := clusterConfig(config)
	if err != nil {
		return nil, err
	}
	server, err := newRemote(cluster)
	if err != nil {
		return nil, err
	}
	return &survey{Reader: reader, server: server}, nil
}

// newRemote connects to an API server. It changes the configuration.
func newRemote(cluster *rest.Config) (remote, error) {
	dated := &dates{}
	cluster.Wrap(func(next http.RoundTripper) http.RoundTripper {
		dated.next = next
		return dated
	})
	connected, err := discovery.NewDiscoveryClientForConfig(cluster)
	if err != nil {
		return remote{}, fmt.Errorf("connect to the cluster at %s: %w", cluster.Host, err)
	}
	return remote{connected.RESTClient(), dated}, nil
}

// dates remembers the time of the API server's last answer: this machine's clock may be wrong.
type dates struct {
	next http.RoundTripper
	last atomic.Pointer[time.Time]
}

func (d *dates) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		d.last.Store(&date)
	}
	return response, nil
}

// remote asks an API server about itself.
type remote struct {
	client rest.Interface
	*dates
}

// Now falls back to this machine's time if the API server has not sent its own.
func (r remote) Now() time.Time {
	if last := r.last.Load(); last != nil {
		return *last
	}
	return time.Now()
}

func (r remote) Version(ctx context.Context) (string, error) {
	var info apiversion.Info
	body, err := r.client.Get().AbsPath("/version").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(body, &info)
	}
	return info.GitVersion, err
}

func (r remote) Resources(ctx context.Context, groupVersion string) ([]string, error) {
	body, err := r.get(ctx, "/apis/"+groupVersion)
	if err != nil || body == nil {
		return nil, err
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	var names []string
	for _, resource := range list.APIResources {
		names = append(names, resource.Name)
	}
	return names, nil
}

func (r remote) Schemas(ctx context.Context) ([]byte, error) { return r.get(ctx, crd.Path) }

// get returns nil for a path that is not served.
func (r remote) get(ctx context.Context, path string) ([]byte, error) {
	body, err := r.client.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return body, err
}

// maxMetrics bounds the API server's metrics: those of a large cluster have tens of MiB.
const maxMetrics = 256 << 20

// gateMetric is in component-base since Kubernetes 1.26.
const gateMetric = "kubernetes_feature_enabled"

func (r remote) Gates(ctx context.Context) (map[string]bool, error) {
	stream, err := r.client.Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	return gatesOf(stream)
}

// gatesOf parses one metric and stops behind it: all metrics of a large cluster would take much memory.
func gatesOf(metrics io.Reader) (map[string]bool, error) {
	var family bytes.Buffer
	lines := bufio.NewScanner(io.LimitReader(metrics, maxMetrics))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), gateMetric) {
			family.WriteString(lines.Text() + "\n")
		} else if family.Len() > 0 {
			break
		}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(&family)
	if err = errors.Join(lines.Err(), err); err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}
	gates := map[string]bool{}
	for _, metric := range families[gateMetric].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "name" {
				gates[label.GetValue()] = metric.GetUntyped().GetValue() == 1
			}
		}
	}
	return gates, nil
}
