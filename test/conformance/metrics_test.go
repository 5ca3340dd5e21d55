//go:build conformance

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
)

// metricsPort is the port's name in the chart.
const metricsPort = "metrics"

// TestAcceleratorMetrics is of KAR-0059: each GPU, idle or held, has its utilization and its memory, in Prometheus' format.
// No load is made: that takes CUDA in a pod.
func TestAcceleratorMetrics(t *testing.T) {
	s := requires(t, "accelerator_metrics")
	s.sub("Service", func(s *scenario) {
		services, err := s.client.CoreV1().Services(s.plugin.Namespace).List(s.Context(), metav1.ListOptions{})
		s.must(err, "list the Services of namespace %s", s.plugin.Namespace)
		i := slices.IndexFunc(services.Items, s.servesMetrics)
		if i < 0 {
			s.Fatalf("no Service of namespace %s leads to the port %s of DaemonSet %s: install this version's chart", s.plugin.Namespace, metricsPort, s.plugin.Name)
		}
		service := services.Items[i].Name
		s.Logf("the Service is %s/%s", s.plugin.Namespace, service)
		s.eventually(scrapeTimeout, "the Service answers for the GPUs of a node", func(ctx context.Context) error {
			families, err := s.scrape(ctx, "services", service+":"+metricsPort)
			if err == nil && (len(gpusWith(families, utilizationSeries)) == 0 || len(gpusWith(families, memorySeries)) == 0) {
				err = fmt.Errorf("no GPU has the series %s and %s", utilizationSeries, memorySeries)
			}
			return err
		})
	})
	s.sub("EachGPU", func(s *scenario) {
		pods, err := s.client.CoreV1().Pods(s.plugin.Namespace).List(s.Context(), metav1.ListOptions{LabelSelector: pluginSelector})
		s.must(err, "list the plugin's pods")
		for node, gpus := range s.gpus {
			i := slices.IndexFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName == node && pod.DeletionTimestamp == nil })
			if i < 0 {
				s.Errorf("node %s has GPUs, and no pod of DaemonSet %s", node, s.plugin.Name)
				continue
			}
			s.eventually(scrapeTimeout, "each GPU of node "+node+" has utilization and memory", func(ctx context.Context) error {
				families, err := s.scrape(ctx, "pods", fmt.Sprintf("%s:%d", pods.Items[i].Name, s.port(&pods.Items[i])))
				if err != nil {
					return err
				}
				return errors.Join(lacking(families, utilizationSeries, gpus), lacking(families, memorySeries, gpus))
			})
			s.Logf("node %s: %d GPUs have utilization and memory", node, len(gpus))
		}
	})
}

func lacking(families map[string]*dto.MetricFamily, name string, gpus []gpu) error {
	found := gpusWith(families, name)
	for _, g := range gpus {
		if !found[g.uuid] {
			return fmt.Errorf("%s has no series %s with the label UUID=%q", g.name, name, g.uuid)
		}
	}
	return nil
}

// servesMetrics reports whether the Service selects the plugin's pods and has their port.
func (c *cluster) servesMetrics(service corev1.Service) bool {
	return len(service.Spec.Selector) > 0 &&
		labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(c.plugin.Spec.Template.Labels)) &&
		slices.ContainsFunc(service.Spec.Ports, func(port corev1.ServicePort) bool { return port.Name == metricsPort })
}

// port is that of the plugin's metrics, zero if it has none.
func (c *cluster) port(pod *corev1.Pod) int32 {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == metricsPort {
				return port.ContainerPort
			}
		}
	}
	return 0
}

// scrape reads metrics by the API server's proxy.
func (c *cluster) scrape(ctx context.Context, resource, name string) (map[string]*dto.MetricFamily, error) {
	body, err := proxied(c.client.CoreV1().RESTClient().Get(), c.plugin.Namespace, resource, name, "metrics").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("get the metrics of %s: %w", name, err)
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(body)
}

// proxied is a request to a pod or Service by way of the API server.
func proxied(request *rest.Request, namespace, resource, name, path string) *rest.Request {
	return request.Namespace(namespace).Resource(resource).Name(name).SubResource("proxy").Suffix(path)
}
