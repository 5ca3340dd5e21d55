package usage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/mica-gpu/mica/pkg/gpu"
)

const (
	// scrapeTimeout bounds a request including its answer. Plugins answer from memory.
	scrapeTimeout = 2 * time.Second
	// maxPage bounds an answer, in bytes. A plugin's has some ten thousand.
	maxPage = 4 << 20
	// maxHeader bounds an answer's headers, in bytes.
	maxHeader = 16 << 10
)

// newHTTPClient keeps no connections alive: those of a thousand nodes need more memory than
// reconnecting every few seconds needs time.
func newHTTPClient() *http.Client {
	return &http.Client{
		Timeout: scrapeTimeout,
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
			// No Proxy: proxies of the environment are for servers outside of the cluster.
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// scrape returns the readings of a node's devices by name.
func scrape(ctx context.Context, c cluster, plugins *http.Client, node string) (map[string]Reading, error) {
	at, err := c.target(ctx, node)
	if err != nil {
		return nil, err
	}
	return get(ctx, plugins, at)
}

func get(ctx context.Context, c *http.Client, at target) (map[string]Reading, error) {
	address := url.URL{Scheme: "http", Host: net.JoinHostPort(at.address, strconv.Itoa(int(at.port))), Path: "/metrics"}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", at.pod, err)
	}
	request.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	response, err := c.Do(request)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w: check that it runs, and that no NetworkPolicy blocks the controller", at.pod, err)
	}
	defer response.Body.Close()
	readings, err := read(response)
	if err != nil {
		return nil, fmt.Errorf("cannot read the answer of pod %s at %s: %w", at.pod, address.String(), err)
	}
	return readings, nil
}

func read(response *http.Response) (map[string]Reading, error) {
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %s: check that the port is the plugin's", response.Status)
	}
	if expfmt.ResponseFormat(response.Header).FormatType() != expfmt.TypeTextPlain {
		return nil, fmt.Errorf("content of type %q, not Prometheus' text: check that the port is the plugin's", response.Header.Get("Content-Type"))
	}
	lines, err := ownLines(http.MaxBytesReader(nil, response.Body, maxPage))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, fmt.Errorf("more than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return nil, err
	}
	return parse(lines)
}

// ownLines keeps the metrics of devices: a plugin serves ten times as many about itself.
func ownLines(page io.Reader) (*bytes.Buffer, error) {
	var own bytes.Buffer
	lines := bufio.NewScanner(page)
	for lines.Scan() {
		text := strings.TrimPrefix(lines.Text(), "# TYPE ")
		if strings.HasPrefix(text, metricPrefix) {
			own.Write(lines.Bytes())
			own.WriteByte('\n')
		}
	}
	return &own, lines.Err()
}

// metricPrefix is common to all metrics of devices.
const metricPrefix = "mica_device_"

// metrics are those that are read, with their possible values.
var metrics = []struct {
	name  string
	valid func(float64) bool
}{
	{gpu.MetricUtilization, func(v float64) bool { return v >= 0 && v <= 1 }},
	{gpu.MetricMemoryUsed, func(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }},
	{gpu.MetricMemoryTotal, func(v float64) bool { return v > 0 && !math.IsInf(v, 0) }},
	{gpu.MetricSampled, func(v float64) bool { return v > 0 && v < latestSecond }},
}

// latestSecond is in the year 9999. Later timestamps are not in seconds.
const latestSecond = 253402300800

// parse reads the readings of devices.
func parse(page io.Reader) (map[string]Reading, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return nil, err
	}
	values := map[string]map[string]*float64{} // by device and metric
	for _, m := range metrics {
		for _, metric := range families[m.name].GetMetric() {
			if err := add(values, m.name, metric, m.valid); err != nil {
				return nil, fmt.Errorf("metric %s: %w", m.name, err)
			}
		}
	}
	readings := make(map[string]Reading, len(values))
	for device, of := range values {
		sampled := of[gpu.MetricSampled]
		if sampled == nil {
			return nil, fmt.Errorf("device %s lacks %s", device, gpu.MetricSampled)
		}
		seconds, rest := math.Modf(*sampled)
		readings[device] = Reading{
			Utilization: of[gpu.MetricUtilization], MemoryUsed: of[gpu.MetricMemoryUsed], MemoryTotal: of[gpu.MetricMemoryTotal],
			At: time.Unix(int64(seconds), int64(rest*1e9)),
		}
	}
	return readings, nil
}

func add(values map[string]map[string]*float64, name string, metric *dto.Metric, valid func(float64) bool) error {
	device := ""
	for _, label := range metric.GetLabel() {
		if label.GetName() == "device" {
			device = label.GetValue()
		}
	}
	if device == "" {
		return errors.New(`a series has no label "device"`)
	}
	if metric.GetGauge() == nil {
		return fmt.Errorf("device %s: not a gauge", device)
	}
	if values[device] == nil {
		values[device] = map[string]*float64{}
	}
	if values[device][name] != nil {
		return fmt.Errorf("device %s occurs twice", device)
	}
	value := metric.GetGauge().GetValue()
	if !valid(value) {
		return fmt.Errorf("device %s: %v is out of range", device, value)
	}
	values[device][name] = &value
	return nil
}
