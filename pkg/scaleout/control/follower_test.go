package control

import (
	"context"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/scaleout"
)

func asksForOne() *asker {
	claim := &resourceapi.ResourceClaimSpec{}
	claim.Devices.Requests = []resourceapi.DeviceRequest{{Name: "d", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driverName}}}
	return &asker{replicas: []scaleout.Replica{{ID: "devices", Claim: claim}}}
}

// A replica that does not lead answers as the leader does, and changes nothing.
func TestAFollowerTellsWhatTheLeaderTells(t *testing.T) {
	w := newWorld(t, append(oneGPU(5), group("g6"))...)
	follows := asksForOne()
	w.loop.Forecast = follows
	if _, err := w.loop.Follower().pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.writes != 0 {
		t.Errorf("it has written %d times", w.writes)
	}
	leads := asksForOne()
	w.loop.Forecast = leads
	w.pass()
	if len(follows.told) != 1 || follows.rooms()[0] != leads.rooms()[0] || leads.rooms()[0].Coming == 0 {
		t.Errorf("the follower tells of %v, the leader of %v", follows.rooms(), leads.rooms())
	}
}

// KEDA asks one replica: the others have no plan to pay for.
func TestAFollowerThatNobodyAsksReadsNothing(t *testing.T) {
	w := newWorld(t)
	nobodyAsks := &asker{}
	w.loop.Forecast, w.loop.Client = nobodyAsks, nil
	if again, err := w.loop.Follower().pass(t.Context()); err != nil || !again.IsZero() {
		t.Errorf("again at %s, %v", again, err)
	}
	if len(nobodyAsks.told)+len(nobodyAsks.failed) != 0 {
		t.Errorf("it has told of %d plans and %d failures", len(nobodyAsks.told), len(nobodyAsks.failed))
	}
}

// Both look at the cluster with the same memory.
func TestAFollowerEndsWhenItsReplicaLeads(t *testing.T) {
	w := newWorld(t)
	passed := make(chan struct{}, 1000)
	asks := asksForOne()
	asks.telling = func() { passed <- struct{}{} }
	w.loop.Forecast = asks
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() {
		for ctx.Err() == nil {
			w.clock.Step(100 * time.Millisecond)
			time.Sleep(time.Millisecond)
		}
	})
	followed, led := make(chan error, 1), make(chan error, 1)
	go func() { followed <- w.loop.Follower().Start(ctx) }()
	<-passed
	go func() { led <- w.loop.Start(ctx) }()
	if err := <-followed; err != nil {
		t.Error(err)
	}
	for len(passed) > 0 {
		<-passed
	}
	w.loop.Enqueue()
	<-passed // the leader's
	stop()
	if err := <-led; err != nil {
		t.Error(err)
	}
}
