// Command adapter stands in for an adapter of custom metrics, such as prometheus-adapter, on a cluster without one: it
// serves custom.metrics.k8s.io for pods alone, with the gauges that the pods themselves serve at the moment of the
// request. There is no store and no rule in between, and the API server's identity is not checked.
//
// The paths and the list are those of k8s.io/metrics' custom_metrics/v1beta2, which the HorizontalPodAutoscaler's
// client (k8s.io/metrics/pkg/client/custom_metrics) asks for.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
)

const groupVersion = "custom.metrics.k8s.io/v1beta2"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "adapter:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("adapter", flag.ContinueOnError)
	listen := flags.String("listen", ":6443", "address to serve at")
	port := flags.Int("port", 8080, "port of the pods' metrics")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("use the API server: %w", err)
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("adapter", nil, nil)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("use the certificate: %w", err)
	}
	server := &http.Server{
		Addr: *listen, Handler: adapter{client, strconv.Itoa(*port)}.handler(), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}
	end := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer end()
	if err := server.ListenAndServeTLS("", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the metrics: %w", err)
	}
	return nil
}

type adapter struct {
	client kubernetes.Interface
	port   string
}

// metricValueList is a MetricValueList of custom.metrics.k8s.io/v1beta2.
type metricValueList struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ListMeta `json:"metadata"`
	Items           []metricValue   `json:"items"`
}

type metricValue struct {
	DescribedObject corev1.ObjectReference `json:"describedObject"`
	Metric          metricIdentifier       `json:"metric"`
	Timestamp       metav1.Time            `json:"timestamp"`
	Value           resource.Quantity      `json:"value"`
}

type metricIdentifier struct {
	Name string `json:"name"`
}

func (a adapter) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/"+groupVersion, func(w http.ResponseWriter, _ *http.Request) {
		// What a metric is called is known to the pods alone; discovery names one that any pod may have.
		answer(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion,
			APIResources: []metav1.APIResource{{Name: "pods/gauge", Namespaced: true, Kind: "MetricValueList", Verbs: []string{"get"}}},
		})
	})
	mux.HandleFunc("GET /apis/"+groupVersion+"/namespaces/{namespace}/pods/{pod}/{metric}", func(w http.ResponseWriter, r *http.Request) {
		list, err := a.values(r.Context(), r.PathValue("namespace"), r.PathValue("metric"), r.FormValue("labelSelector"))
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case r.PathValue("pod") != "*" || len(list.Items) == 0:
			http.Error(w, "there is no such metric of pods, which are asked for together", http.StatusNotFound)
		default:
			answer(w, list)
		}
	})
	return mux
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object) // the client is gone
}

// values are the metric's of the running pods that have it.
func (a adapter) values(ctx context.Context, namespace, metric, selector string) (*metricValueList, error) {
	pods, err := a.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list the pods: %w", err)
	}
	list := &metricValueList{TypeMeta: metav1.TypeMeta{Kind: "MetricValueList", APIVersion: groupVersion}, Items: []metricValue{}}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.PodIP == "" {
			continue
		}
		value, found, err := a.read(ctx, pod.Status.PodIP, metric)
		if err != nil {
			fmt.Fprintf(os.Stderr, "adapter: pod %s/%s: %v\n", namespace, pod.Name, err)
		}
		if !found {
			continue
		}
		list.Items = append(list.Items, metricValue{
			DescribedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "/v1", Namespace: namespace, Name: pod.Name},
			Metric:          metricIdentifier{metric}, Timestamp: metav1.Now(),
			Value: *resource.NewMilliQuantity(int64(value*1000), resource.DecimalSI),
		})
	}
	return list, nil
}

// read is the gauge that a pod serves.
func (a adapter) read(ctx context.Context, address, metric string) (float64, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(address, a.port)+"/metrics", nil)
	if err != nil {
		return 0, false, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, false, err
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return 0, false, fmt.Errorf("read its metrics: %w", err)
	}
	family := families[metric]
	if family == nil || family.GetType() != dto.MetricType_GAUGE || len(family.GetMetric()) != 1 {
		return 0, false, nil
	}
	return family.GetMetric()[0].GetGauge().GetValue(), true, nil
}
