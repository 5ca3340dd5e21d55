package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

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
	reader, err := newReader(config)
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

// newRemote connects to an API server, whose configuration it takes for itself.
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

// dates remembers when the API server answered last, by its own clock: this machine's may be wrong.
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

// remote is an API server that is asked.
type remote struct {
	client rest.Interface
	*dates
}

// Now is this machine's time if the API server has not told its own.
func (r remote) Now() time.Time {
	if last := r.last.Load(); last != nil {
		return *last
	}
	return time.Now()
}

func (r remote) Version(ctx context.Context) (string, error) {
	var info apiversion.Info
	err := r.ask(ctx, "/version", &info)
	return info.GitVersion, err
}

func (r remote) Resources(ctx context.Context, groupVersion string) ([]string, error) {
	var list metav1.APIResourceList
	if err := r.ask(ctx, "/apis/"+groupVersion, &list); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, err
	}
	var names []string
	for _, resource := range list.APIResources {
		names = append(names, resource.Name)
	}
	return names, nil
}

func (r remote) Schemas(ctx context.Context) ([]byte, error) {
	document, err := r.client.Get().AbsPath(crd.Path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return document, err
}

func (r remote) ask(ctx context.Context, path string, into any) error {
	body, err := r.client.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// maxMetrics bounds what is read of the API server's metrics: those of a large cluster have tens of MiB.
const maxMetrics = 256 << 20

// gateMetric is in component-base since Kubernetes 1.26.
const gateMetric = "kubernetes_feature_enabled"

var gateLine = regexp.MustCompile(`^` + gateMetric + `\{name="([A-Za-z0-9]+)"[^}]*\} ([01])$`)

func (r remote) Gates(ctx context.Context) (map[string]bool, error) {
	stream, err := r.client.Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	return gatesOf(stream)
}

// gatesOf reads feature gates from metrics, and stops behind them.
func gatesOf(metrics io.Reader) (map[string]bool, error) {
	gates := map[string]bool{}
	lines := bufio.NewScanner(io.LimitReader(metrics, maxMetrics))
	for lines.Scan() {
		line := lines.Text()
		if match := gateLine.FindStringSubmatch(line); match != nil {
			gates[match[1]] = match[2] == "1"
		} else if len(gates) > 0 && !strings.HasPrefix(line, gateMetric) {
			break
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}
	return gates, nil
}
