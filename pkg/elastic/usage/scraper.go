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
	// refreshEvery leaves time for a request, and some in the queue, until what it gave is
	// 10 seconds old.
	refreshEvery = 7 * time.Second
	// retryEvery is for nodes that have been silent for so long that nobody gets an answer of
	// them: those that are lost keep a request busy until its timeout.
	retryEvery = 30 * time.Second
	// forgetAfter is how long a node is asked after nobody has asked for it.
	forgetAfter = 2 * time.Minute
	// tooOld is what no answer is given of any more.
	tooOld = 45 * time.Second
	// atOnce are the most requests at one time.
	atOnce = 16
)

// scraper keeps the readings of the nodes that somebody asks for.
type scraper struct {
	clock  clock.WithTicker
	scrape func(ctx context.Context, node string) (map[string]Reading, error)

	mu    sync.Mutex
	nodes map[string]*scraped
	// queue has the nodes whose turn it is, never one twice at one time; nil before run.
	queue workqueue.TypedDelayingInterface[string]
}

// scraped is what is known of a node.
type scraped struct {
	// since is when somebody first asked for it, and asked when somebody last did.
	since, asked time.Time
	// tried is when the last request began, zero before there was one, and err what came of it.
	tried time.Time
	err   error
	// readings are of the last request that had an answer, which was at got.
	readings map[string]Reading
	got      time.Time
	// next is closed when the next request is over.
	next chan struct{}
}

func newScraper(c clock.WithTicker, scrape func(context.Context, string) (map[string]Reading, error)) *scraper {
	return &scraper{
		clock:  c,
		scrape: scrape,
		nodes:  map[string]*scraped{},
	}
}

// run asks until ctx ends.
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

// begin lets questions into the queue, those first that were there before.
func (s *scraper) begin(queue workqueue.TypedDelayingInterface[string]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue
	for node := range s.nodes {
		s.queue.Add(node)
	}
}

// work asks the next node; it is false when there will be none any more.
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

// wanted forgets the node if nobody asks for it.
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

// keep keeps what came of a request, and says when the next one is due.
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

// log tells of the first of several failures, and of their end.
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

// ask says that somebody wants to know of the node, and gives what is known of it now.
func (s *scraper) ask(node string) scraped { return s.askFor(node, false) }

// askFor is ask, with a request at once if it is urgent or the first one.
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

// first is ask for what is known once there was a request: it waits for the first one until ctx
// ends.
func (s *scraper) first(ctx context.Context, node string) (scraped, error) {
	known := s.ask(node)
	if !known.tried.IsZero() {
		return known, nil
	}
	return s.wait(ctx, node, known)
}

// again is ask for what is known after a request that begins now, or is under way. It waits for
// it until ctx ends.
func (s *scraper) again(ctx context.Context, node string) (scraped, error) {
	return s.wait(ctx, node, s.askFor(node, true))
}

// wait waits for the request that was the next one when known was.
func (s *scraper) wait(ctx context.Context, node string, known scraped) (scraped, error) {
	select {
	case <-known.next:
		return s.ask(node), nil
	case <-ctx.Done():
		return known, context.Cause(ctx)
	}
}
