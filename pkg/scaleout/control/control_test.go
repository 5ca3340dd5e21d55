package control

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
)

func TestAnErrorIsLoggedOnceUntilItIsGone(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(context.Background(), logger)
	sink, is := logger.GetSink().(ktesting.Underlier)
	if !is {
		t.Fatal("the logger keeps no log")
	}
	a, b := errors.New("a is broken"), errors.New("b is broken")
	var l errorLog
	for i, step := range []struct {
		err    error
		logged int
	}{
		{errors.Join(a, nil, b), 2},
		{errors.Join(a, fmt.Errorf("b is broken")), 2},
		{errors.Join(errors.Join(a), nil), 2},
		{errors.Join(a, b), 3},
		{nil, 3},
		{a, 4},
	} {
		l.log(ctx, step.err, "Part of a pass failed")
		if got := len(sink.GetBuffer().Data()); got != step.logged {
			t.Errorf("after step %d there are %d lines, want %d", i, got, step.logged)
		}
	}
}

func TestChangesThatComeTogetherMakeOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Options: Options{Clock: clock.RealClock{}}, dirty: make(chan struct{}, 1)}
		begun := time.Now()
		go func() {
			l.Enqueue()
			l.Enqueue()
			time.Sleep(settle / 2)
			l.Enqueue()
		}()
		if !l.await(t.Context(), begun.Add(time.Hour)) {
			t.Fatal("the loop has ended")
		}
		if waited := time.Since(begun); waited != settle {
			t.Errorf("the pass begins after %s, want %s", waited, settle)
		}
		select {
		case <-l.dirty:
			t.Error("a change that came before the pass makes another one")
		default:
		}
	})
}

func TestAPassIsDueByTimeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Options: Options{Clock: clock.RealClock{}}, dirty: make(chan struct{}, 1)}
		begun := time.Now()
		if !l.await(t.Context(), begun.Add(time.Minute)) || time.Since(begun) != time.Minute {
			t.Errorf("a pass is due after %s, want a minute", time.Since(begun))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if l.await(ctx, time.Now().Add(time.Hour)) {
			t.Error("a pass is due after the end")
		}
	})
}

func TestTheNextPassIsTheEarliestThatIsNeeded(t *testing.T) {
	fake := testingclock.NewFakeClock(time.Unix(1000, 0))
	l := &Loop{Options: Options{Clock: fake}}
	for again, want := range map[time.Time]time.Duration{
		{}:                               idle,
		fake.Now():                       overdue,
		fake.Now().Add(5 * time.Second):  5 * time.Second,
		fake.Now().Add(10 * time.Minute): idle,
		fake.Now().Add(-time.Minute):     overdue,
	} {
		if got := l.nextPass(again).Sub(fake.Now()); got != want {
			t.Errorf("for %v the next pass is in %s, want %s", again, got, want)
		}
	}
}

func TestALoopThatHangsIsNotAlive(t *testing.T) {
	fake := testingclock.NewFakeClock(time.Unix(1000, 0))
	l := &Loop{Options: Options{Clock: fake}}
	if err := l.Alive(); err != nil {
		t.Errorf("a loop that waits is not alive: %v", err)
	}
	l.passing.Store(fake.Now().UnixNano())
	fake.Step(hangs)
	if err := l.Alive(); err != nil {
		t.Errorf("a loop that works is not alive: %v", err)
	}
	fake.Step(time.Second)
	if err := l.Alive(); err == nil {
		t.Error("a loop that hangs is alive")
	}
}
