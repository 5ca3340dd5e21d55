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

// A replica that does not lead counts the same room as the leader, and writes nothing.
func TestAFollowerReportsTheSameRoomAsTheLeader(t *testing.T) {
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
	if len(follows.planned) != 1 || follows.rooms()[0] != leads.rooms()[0] || leads.rooms()[0].Coming == 0 {
		t.Errorf("the follower reports %v, the leader %v", follows.rooms(), leads.rooms())
	}
}

// KEDA asks one replica. The others do not plan.
func TestAFollowerWithoutReplicasReadsNothing(t *testing.T) {
	w := newWorld(t)
	idle := &asker{}
	w.loop.Forecast, w.loop.Client = idle, nil
	if again, err := w.loop.Follower().pass(t.Context()); err != nil || !again.IsZero() {
		t.Errorf("again at %s, %v", again, err)
	}
	if len(idle.planned)+len(idle.failed) != 0 {
		t.Errorf("it has reported %d plans and %d failures", len(idle.planned), len(idle.failed))
	}
}

// Loop and follower share a memory, so they may not run at the same time.
func TestAFollowerEndsWhenItsReplicaLeads(t *testing.T) {
	w := newWorld(t)
	passed := make(chan struct{}, 1000)
	asks := asksForOne()
	asks.onPlan = func() { passed <- struct{}{} }
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
