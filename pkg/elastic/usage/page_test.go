package usage

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestReadingsAreFetched(t *testing.T) {
	p := newPlugins(t)
	lines := append(page(series("gpu-0", 0.25, 1.5e9, 8e9, t0.Add(500*time.Millisecond))),
		// A partition that tells its memory only.
		gpu.MetricMemoryUsed+`{device="gpu-1-mig-1g5gb-19-0"} 1e+09`,
		gpu.MetricMemoryTotal+`{device="gpu-1-mig-1g5gb-19-0"} 5e+09`,
		gpu.MetricSampled+fmt.Sprintf(`{device="gpu-1-mig-1g5gb-19-0"} %d`, t0.Unix()),
		`mica_device_of_the_future{device="gpu-0"} 7`,
	)
	p.tell(lines...)
	ip, port := p.at(t)
	got, err := get(t.Context(), newHTTPClient(), target{pod: "mica/a", address: ip, port: port})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Fatalf("got %v", got)
	}
	whole, partition := got["gpu-0"], got["gpu-1-mig-1g5gb-19-0"]
	if whole.Utilization == nil || *whole.Utilization != 0.25 || *whole.MemoryUsed != 1.5e9 || *whole.MemoryTotal != 8e9 || !whole.At.Equal(t0.Add(500*time.Millisecond)) {
		t.Errorf("of the GPU, %+v was read", whole)
	}
	if partition.Utilization != nil || *partition.MemoryUsed != 1e9 || *partition.MemoryTotal != 5e9 || !partition.At.Equal(t0) {
		t.Errorf("of the partition, %+v was read", partition)
	}
}

func TestWhatIsNoPageOfAPluginIsRefused(t *testing.T) {
	serve := func(lines ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { servePage(w, lines...) }
	}
	const sampled = gpu.MetricSampled + `{device="gpu-0"} 1788264000`
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   []string
	}{
		"an error of the server": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "sorry", http.StatusInternalServerError) }, []string{"500 Internal Server Error"}},
		"a redirect":             {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, []string{"302 Found"}},
		"a web page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html></html>")
		}, []string{`content of type "text/html"`, "the port is the plugin's"}},
		"more than a plugin says": {func(w http.ResponseWriter, _ *http.Request) {
			servePage(w)
			line := []byte(strings.Repeat("x", 1023) + "\n")
			for range maxPage / len(line) {
				if _, err := w.Write(line); err != nil {
					return // the client has read enough
				}
			}
		}, []string{"more than 4194304 bytes"}},
		"a line without an end": {func(w http.ResponseWriter, _ *http.Request) {
			servePage(w, strings.Repeat("x", 1<<20))
		}, []string{"token too long"}},
		"an answer that is cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", "1000")
			fmt.Fprintln(w, sampled)
		}, []string{"unexpected EOF"}},
		"no number":             {serve("# TYPE "+gpu.MetricUtilization+" gauge", gpu.MetricUtilization+`{device="gpu-0"} much`), []string{`"much"`}},
		"no end of the labels":  {serve("# TYPE "+gpu.MetricUtilization+" gauge", gpu.MetricUtilization+`{device="gpu-0" 1`), []string{"text format parsing error in line 2"}},
		"no device":             {serve("# TYPE "+gpu.MetricUtilization+" gauge", gpu.MetricUtilization+" 1"), []string{gpu.MetricUtilization, `no label "device"`}},
		"a device twice":        {serve(append(page(series("gpu-0", 0, 0, 1, t0)), gpu.MetricUtilization+`{device="gpu-0",more="yes"} 1`)...), []string{gpu.MetricUtilization, "gpu-0 occurs twice"}},
		"a counter":             {serve("# TYPE "+gpu.MetricUtilization+" counter", gpu.MetricUtilization+`{device="gpu-0"} 1`), []string{gpu.MetricUtilization, "not a gauge"}},
		"no time":               {serve("# TYPE "+gpu.MetricUtilization+" gauge", gpu.MetricUtilization+`{device="gpu-0"} 1`), []string{"gpu-0 lacks " + gpu.MetricSampled}},
		"a time in nanoseconds": {serve(page(series("gpu-0", 0, 0, 1, time.UnixMilli(t0.UnixNano())))...), []string{gpu.MetricSampled, "is out of range"}},
		"percent":               {serve(page(series("gpu-0", 70, 0, 1, t0))...), []string{gpu.MetricUtilization, "gpu-0: 70 is out of range"}},
		"less than nothing":     {serve(page(series("gpu-0", 0, -1, 1, t0))...), []string{gpu.MetricMemoryUsed, "-1 is out of range"}},
		"no memory":             {serve(page(series("gpu-0", 0, 0, 0, t0))...), []string{gpu.MetricMemoryTotal, "0 is out of range"}},
		"not a number":          {serve("# TYPE "+gpu.MetricUtilization+" gauge", gpu.MetricUtilization+`{device="gpu-0"} NaN`), []string{"NaN is out of range"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlugins(t)
			p.respond(test.answer)
			ip, port := p.at(t)
			_, err := get(t.Context(), newHTTPClient(), target{pod: "mica/a", address: ip, port: port})
			fixture.Sentence(t, err, append(test.want, "pod mica/a")...)
			if p.requests() != 1 {
				t.Errorf("%d requests were made", p.requests())
			}
		})
	}
}

func TestAPluginThatDoesNotAnswerIsNotWaitedForLong(t *testing.T) {
	p := newPlugins(t)
	p.respond(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ip, port := p.at(t)
	c := newHTTPClient()
	if c.Timeout != 2*time.Second {
		t.Errorf("it is waited for %s", c.Timeout)
	}
	c.Timeout = 20 * time.Millisecond
	_, err := get(t.Context(), c, target{pod: "mica/a", address: ip, port: port})
	fixture.Sentence(t, err, "pod mica/a", "Client.Timeout", "NetworkPolicy")
}

func TestAPluginThatIsNotThereIsAnError(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	p := &plugins{Server: closed}
	ip, port := p.at(t)
	closed.Close()
	_, err := get(t.Context(), newHTTPClient(), target{pod: "mica/a", address: ip, port: port})
	fixture.Sentence(t, err, "pod mica/a", "connection refused", "NetworkPolicy")
}

// Plugins are in the cluster, so proxies of the environment are ignored.
func TestPluginsAreNotAskedThroughAProxy(t *testing.T) {
	if newHTTPClient().Transport.(*http.Transport).Proxy != nil {
		t.Error("there is a proxy")
	}
}

// FuzzParse: whatever a port serves is readings that can be, or an error.
func FuzzParse(f *testing.F) {
	f.Add(strings.Join(page(series("gpu-0", 0.5, 1, 2, t0)), "\n") + "\n")
	f.Add(gpu.MetricUtilization + `{device="gpu-0"} 1` + "\n")
	f.Add("# TYPE " + gpu.MetricMemoryUsed + " histogram\n" + gpu.MetricMemoryUsed + `_bucket{le="x"} 1` + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		lines, err := ownLines(strings.NewReader(text))
		if err != nil {
			return
		}
		readings, err := parse(lines)
		if err != nil {
			return
		}
		for device, reading := range readings {
			if device == "" || reading.At.IsZero() {
				t.Errorf("device %q: %+v", device, reading)
			}
			if u := reading.Utilization; u != nil && !(*u >= 0 && *u <= 1) {
				t.Errorf("device %q: utilization %v", device, *u)
			}
			if m := reading.MemoryTotal; m != nil && !(*m > 0) {
				t.Errorf("device %q: %v bytes", device, *m)
			}
		}
	})
}
