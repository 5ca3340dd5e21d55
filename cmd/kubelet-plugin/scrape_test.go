package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/mica-gpu/mica/pkg/node/sample"
	"github.com/mica-gpu/mica/test/fixture"
)

// A client that sends what it likes takes neither the node's memory nor Prometheus' answers.
func TestAFloodOfScrapes(t *testing.T) {
	// Of the memory, less than 10 MB are the server's: the client is in this process, too.
	const scrapes, answers, memory = 10_000, 500, 20 << 20
	address := serving(t, sample.New())
	before := memoryInUse()
	flooded := make(chan error, 1)
	go func() { flooded <- scrapeAtOnce(address, scrapes, answers) }()
	var most int
	var slowest time.Duration
	late := 0
	for others, ended := 0, false; !ended || others < 5; others++ {
		start := time.Now()
		if got, err := scrape(t.Context(), address); err != nil || got != http.StatusOK {
			t.Errorf("another scraper got %d, %v", got, err)
		}
		took := time.Since(start)
		slowest = max(slowest, took)
		if took > time.Second {
			late++
		}
		most = max(most, memoryInUse())
		select {
		case err := <-flooded:
			must(t, err)
			ended = true
		default:
		}
	}
	t.Logf("the slowest of other scrapes took %s; %d bytes more than before", slowest, most-before)
	// A machine that compiles beside the tests may hold this process up once.
	if most-before > memory || late > 1 {
		t.Errorf("%d scrapes on one connection take %d bytes more than before, and %d others longer than a second", scrapes, most-before, late)
	}
}

func TestNoMoreScrapesAtOnce(t *testing.T) {
	slow := &slowCollector{release: make(chan struct{})}
	address := serving(t, slow)
	answers := make(chan int, 5*maxScrapes)
	for range cap(answers) {
		go func() {
			got, err := scrape(t.Context(), address)
			if err != nil {
				t.Error(err)
			}
			answers <- got
		}()
	}
	for range cap(answers) - maxScrapes {
		if got := <-answers; got != http.StatusServiceUnavailable {
			t.Errorf("a scrape that is too many got %d", got)
		}
	}
	fixture.Eventually(t, "the others", func() error {
		if got := slow.running.Load(); got != maxScrapes {
			return fmt.Errorf("%d scrapes at once, want %d", got, maxScrapes)
		}
		return nil
	})
	close(slow.release)
	for range maxScrapes {
		if got := <-answers; got != http.StatusOK {
			t.Errorf("a scrape got %d", got)
		}
	}
}

// Of a thousand clients at once, a few are served at a time, and the others are told so or lose their connection.
func TestAThousandClients(t *testing.T) {
	const clients, memory = 1000, 40 << 20 // most of it is that of the clients, which are in this process, too
	counted := &countingCollector{}
	address := serving(t, counted)
	before := memoryInUse()
	var served, refused, lost atomic.Int32
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			switch status, err := scrape(t.Context(), address); {
			case err != nil:
				lost.Add(1)
			case status == http.StatusOK:
				served.Add(1)
			case status == http.StatusServiceUnavailable:
				refused.Add(1)
			default:
				t.Errorf("a client got status %d", status)
			}
		})
	}
	all.Wait()
	if more := memoryInUse() - before; more > memory {
		t.Errorf("%d clients leave %d bytes behind", clients, more)
	}
	t.Logf("%d clients were served, %d refused and %d disconnected", served.Load(), refused.Load(), lost.Load())
	if most := counted.most.Load(); most == 0 || most > maxScrapes {
		t.Errorf("up to %d clients were served at once, want at most %d", most, maxScrapes)
	}
	fixture.Eventually(t, "the answer to the next client", func() error {
		status, err := scrape(t.Context(), address)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
}

// countingCollector counts the scrapes at one time.
type countingCollector struct {
	metrics.BaseStableCollector
	now, most atomic.Int32
}

func (*countingCollector) DescribeWithStability(into chan<- *metrics.Desc) {
	into <- metrics.NewDesc("mica_test_count", "none", nil, nil, metrics.ALPHA, "")
}

func (c *countingCollector) CollectWithStability(chan<- metrics.Metric) {
	now := c.now.Add(1)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	time.Sleep(time.Millisecond) // so that others come meanwhile
	c.now.Add(-1)
}

// slowCollector has nothing to tell until it is released.
type slowCollector struct {
	metrics.BaseStableCollector
	running atomic.Int32
	release chan struct{}
}

func (*slowCollector) DescribeWithStability(into chan<- *metrics.Desc) {
	into <- metrics.NewDesc("mica_test_slow", "none", nil, nil, metrics.ALPHA, "")
}

func (c *slowCollector) CollectWithStability(chan<- metrics.Metric) {
	c.running.Add(1)
	<-c.release
}

// serving serves metrics until the test ends.
func serving(t *testing.T, collector metrics.StableCollector) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveMetrics(ctx, listener, []metrics.StableCollector{collector}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// scrape opens a connection for one scrape.
func scrape(ctx context.Context, address string) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// scrapeAtOnce sends all requests on one connection at once, and leaves after some answers.
func scrapeAtOnce(address string, scrapes, answers int) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	go func() { // until the connection is closed
		_, _ = io.WriteString(conn, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: plugin\r\n\r\n", scrapes))
	}()
	reader := bufio.NewReader(conn)
	for i := range answers {
		answer, err := http.ReadResponse(reader, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
		}
		if err != nil {
			return fmt.Errorf("after %d answers: %w", i, err)
		}
	}
	return nil
}

// memoryInUse is without what the garbage collector would free.
func memoryInUse() int {
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int(memory.HeapAlloc + memory.StackInuse)
}
