package usage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/mica-gpu/mica/test/fixture"
)

// nodes answers for all nodes, and counts requests.
type nodes struct {
	mu          sync.Mutex
	err         error
	asked       map[string]int
	now, most   map[string]int // requests under way, by node and, for "", of all
	began, hold chan struct{}  // a request tells the one, and waits for the other
}

func newNodes() *nodes {
	return &nodes{asked: map[string]int{}, now: map[string]int{}, most: map[string]int{}}
}

func (n *nodes) scrape(ctx context.Context, node string) (map[string]Reading, error) {
	n.count(node, 1)
	defer n.count(node, -1)
	if n.hold != nil {
		select {
		case n.began <- struct{}{}:
		case <-n.hold: // the test has ended
		}
		select {
		case <-n.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[node]++
	return map[string]Reading{}, n.err
}

func (n *nodes) count(node string, more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, key := range []string{node, ""} {
		n.now[key] += more
		n.most[key] = max(n.most[key], n.now[key])
	}
}

func (n *nodes) requests(node string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[node]
}

func (n *nodes) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}

// running is a scraper that runs until the test ends.
func running(t testing.TB, s *scraper) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
}

func TestTheFirstQuestionWaitsForAnAnswer(t *testing.T) {
	n := newNodes()
	n.began, n.hold = make(chan struct{}), make(chan struct{})
	s := newScraper(testclock.NewFakeClock(t0), n.scrape)
	answers := make(chan error, 3)
	for range 3 { // the first before it runs
		go func() {
			known, err := s.first(t.Context(), "n1")
			if err == nil && known.tried.IsZero() {
				err = errors.New("it was not waited for")
			}
			answers <- err
		}()
	}
	running(t, s)
	<-n.began
	select {
	case err := <-answers:
		t.Fatalf("there is an answer without a request: %v", err)
	default:
	}
	close(n.hold)
	for range 3 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if n.requests("n1") != 1 {
		t.Errorf("%d requests were made", n.requests("n1"))
	}
}

func TestAQuestionEndsWithItsContext(t *testing.T) {
	s := newScraper(testclock.NewFakeClock(t0), newNodes().scrape) // does not run
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := s.first(ctx, "n1"); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

func TestANodeIsPolledWhileItIsRequested(t *testing.T) {
	n := newNodes()
	clock := testclock.NewFakeClock(t0)
	s := newScraper(clock, n.scrape)
	running(t, s)
	if _, err := s.first(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	known := s.ask("n1")
	// The queue learns of the next turn after the answer: the clock has to go on until then.
	fixture.Eventually(t, "the next request", func() error {
		clock.Step(time.Second)
		if n.requests("n1") < 2 {
			return errors.New("there is none")
		}
		return nil
	})
	select {
	case <-known.next:
	case <-time.After(time.Minute):
		t.Fatal("no caller gets the next answer")
	}
	if got := s.ask("n1").tried; got.Sub(t0) < refreshEvery {
		t.Errorf("the next request came after %s", got.Sub(t0))
	}
	// No caller asks any longer.
	fixture.Eventually(t, "the node to be forgotten", func() error {
		clock.Step(2 * time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.nodes) > 0 {
			return errors.New("it is known")
		}
		return nil
	})
	if most := int(forgetAfter/refreshEvery) + 3; n.requests("n1") > most {
		t.Errorf("%d requests were made, want %d at most", n.requests("n1"), most)
	}
	if _, err := s.first(t.Context(), "n1"); err != nil {
		t.Errorf("a node that was forgotten: %v", err)
	}
}

func TestANodeThatIsSilentForLongIsAskedLessOften(t *testing.T) {
	clock := testclock.NewFakeClock(t0)
	s := newScraper(clock, newNodes().scrape)
	s.ask("n1")
	fail := errors.New("no")
	if got := s.keep(t.Context(), "n1", t0, nil, fail); got != refreshEvery {
		t.Errorf("a new node that fails is asked again after %s", got)
	}
	clock.Step(tooOld + time.Second)
	if got := s.keep(t.Context(), "n1", clock.Now(), nil, fail); got != retryEvery {
		t.Errorf("one that has never answered is asked again after %s", got)
	}
	if got := s.keep(t.Context(), "n1", clock.Now(), nil, nil); got != refreshEvery {
		t.Errorf("one that has answered is asked again after %s", got)
	}
	clock.Step(tooOld)
	if got := s.keep(t.Context(), "n1", clock.Now(), nil, fail); got != refreshEvery {
		t.Errorf("one that fails for a while is asked again after %s", got)
	}
	clock.Step(time.Second)
	if got := s.keep(t.Context(), "n1", clock.Now(), nil, fail); got != retryEvery {
		t.Errorf("one that fails for long is asked again after %s", got)
	}
}

func TestAFailureKeepsWhatIsKnown(t *testing.T) {
	clock := testclock.NewFakeClock(t0)
	n := newNodes()
	s := newScraper(clock, n.scrape)
	running(t, s)
	if known, err := s.first(t.Context(), "n1"); err != nil || known.err != nil || known.readings == nil {
		t.Fatalf("got %+v, %v", known, err)
	}
	n.fail(errors.New("no"))
	known, err := s.again(t.Context(), "n1")
	if err != nil || known.err == nil || known.readings == nil || !known.got.Equal(t0) {
		t.Errorf("got %+v, %v", known, err)
	}
}

func TestNoMoreThanSixteenNodesAreAskedAtOnceAndEachOnce(t *testing.T) {
	n := newNodes()
	n.began, n.hold = make(chan struct{}), make(chan struct{})
	s := newScraper(testclock.NewFakeClock(t0), n.scrape)
	running(t, s)
	const many = 50
	var questions sync.WaitGroup
	for i := range many {
		for range 2 {
			questions.Go(func() {
				if _, err := s.again(t.Context(), fmt.Sprintf("n%d", i)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	for range atOnce { // all of those that may
		<-n.began
	}
	close(n.hold)
	questions.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for node, most := range n.most {
		if node != "" && most != 1 {
			t.Errorf("node %s was asked %d times at once", node, most)
		}
	}
	if n.most[""] != atOnce {
		t.Errorf("%d nodes were asked at once, want %d", n.most[""], atOnce)
	}
}
