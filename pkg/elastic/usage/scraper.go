package usage

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// refreshEvery leaves time for a request and some queueing before a reading is 10 seconds old.
	refreshEvery = 7 * time.Second
	// retryEvery is for nodes without a usable reading: requests to lost nodes take their whole timeout.
	retryEvery = 30 * time.Second
	// forgetAfter is how long a node is polled after its last request.
	forgetAfter = 2 * time.Minute
	// tooOld is the age at which a reading is refused.
	tooOld = 45 * time.Second
	// atOnce bounds concurrent requests.
	atOnce = 16
)

// scraper polls requested nodes and keeps their readings.
type scraper struct {
	clock  clock.WithTicker
	scrape func(ctx context.Context, node string) (map[string]Reading, error)

	mu    sync.Mutex
	nodes map[string]*scraped
	// queue has the nodes that are due, each at most once; nil before run.
	queue workqueue.TypedDelayingInterface[string]
}

// scraped is a node's state.
type scraped struct {
	// since is the first request for the node, and asked the last.
	since, asked time.Time
	// tried is when the last request to the plugin began, and err its error; zero before the first.
	tried time.Time
	err   error
	// readings are of the last successful request, at got.
	readings map[string]Reading
	got      time.Time
	// next is closed when the next request ends.
	next chan struct{}
}

func newScraper(c clock.WithTicker, scrape func(context.Context, string) (map[string]Reading, error)) *scraper {
	return &scraper{
		clock:  c,
		scrape: scrape,
		nodes:  map[string]*scraped{},
	}
}

// run polls until ctx ends.
func (s *scraper) run(ctx context.Context) {
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Clock: s.clock})
	s.begin(queue)
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for s.work(ctx, queue) {
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()
}

// begin enqueues the nodes that were requested before run.
func (s *scraper) begin(queue workqueue.TypedDelayingInterface[string]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue
	for node := range s.nodes {
		s.queue.Add(node)
	}
}

// work polls the next node. It returns false after shutdown.
func (s *scraper) work(ctx context.Context, queue workqueue.TypedDelayingInterface[string]) bool {
	node, end := queue.Get()
	if end {
		return false
	}
	defer queue.Done(node)
	if !s.wanted(node) {
		return true
	}
	began := s.clock.Now()
	readings, err := s.scrape(ctx, node)
	queue.AddAfter(node, s.keep(ctx, node, began, readings, err))
	return true
}

// wanted reports whether the node is still requested, and drops it if not.
func (s *scraper) wanted(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.nodes[node]
	if known == nil {
		return false
	}
	if s.clock.Since(known.asked) > forgetAfter {
		close(known.next)
		delete(s.nodes, node)
		return false
	}
	return true
}

// keep stores the result of a request and returns the delay until the next one.
func (s *scraper) keep(ctx context.Context, node string, began time.Time, readings map[string]Reading, err error) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.nodes[node]
	s.log(ctx, node, known, err)
	known.tried, known.err = began, err
	if err == nil {
		known.readings, known.got = readings, began
	}
	close(known.next)
	known.next = make(chan struct{})
	if s.clock.Since(known.since) > tooOld && s.clock.Since(known.got) > tooOld {
		return retryEvery
	}
	return refreshEvery
}

// log logs the first of several failures, and their end.
func (s *scraper) log(ctx context.Context, node string, before *scraped, err error) {
	logger := klog.FromContext(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil && before.err == nil:
		logger.Info("Cannot read the device metrics of a node's plugin; retrying", "node", node, "why", err.Error())
	case err == nil && before.err != nil:
		logger.Info("Read the device metrics of a node's plugin again", "node", node)
	case err == nil:
		logger.V(6).Info("Read the device metrics of a node's plugin", "node", node)
	}
}

// ask requests a node and returns its present state.
func (s *scraper) ask(node string) scraped { return s.askFor(node, false) }

// askFor is ask; it polls at once if urgent or never polled.
func (s *scraper) askFor(node string, urgent bool) scraped {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	known := s.nodes[node]
	if known == nil {
		known = &scraped{since: now, next: make(chan struct{})}
		s.nodes[node] = known
		urgent = true
	}
	known.asked = now
	if urgent && s.queue != nil {
		s.queue.Add(node)
	}
	return *known
}

// first is ask, but waits for the first poll until ctx ends.
func (s *scraper) first(ctx context.Context, node string) (scraped, error) {
	known := s.ask(node)
	if !known.tried.IsZero() {
		return known, nil
	}
	return s.wait(ctx, node, known)
}

// again is ask, but waits for a poll that begins now or is running, until ctx ends.
func (s *scraper) again(ctx context.Context, node string) (scraped, error) {
	return s.wait(ctx, node, s.askFor(node, true))
}

// wait waits for the poll that was next in known.
func (s *scraper) wait(ctx context.Context, node string, known scraped) (scraped, error) {
	select {
	case <-known.next:
		return s.ask(node), nil
	case <-ctx.Done():
		return known, context.Cause(ctx)
	}
}
