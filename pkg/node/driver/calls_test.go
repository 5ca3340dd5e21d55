package driver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2/ktesting"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func TestDrainFinishesCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		c := calls{known: make(chan struct{})}
		release := make(chan struct{})
		answered := make(chan error, 1)
		go func() {
			_, err := c.intercept(ctx, nil, nil, func(context.Context, any) (any, error) {
				<-release
				return "prepared", nil
			})
			answered <- err
		}()
		synctest.Wait() // the call is in flight
		drained := make(chan struct{})
		go func() {
			c.drain(ctx, time.Hour)
			close(drained)
		}()
		synctest.Wait()

		_, err := c.intercept(ctx, nil, nil, func(context.Context, any) (any, error) {
			t.Error("a call was begun while draining")
			return nil, nil
		})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("got %v for a new call, want it refused as unavailable", err)
		}
		select {
		case <-drained:
			t.Error("drained although a call is in flight")
		default:
		}
		close(release)
		<-drained
		if err := <-answered; err != nil {
			t.Errorf("the call in flight ended with %v", err)
		}
	})
}

func TestDrainDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		c := calls{known: make(chan struct{})}
		release := make(chan struct{})
		go func() {
			_, _ = c.intercept(ctx, nil, nil, func(context.Context, any) (any, error) {
				<-release
				return nil, nil
			})
		}()
		synctest.Wait()
		start := time.Now()
		c.drain(ctx, 45*time.Second)
		if took := time.Since(start); took != 45*time.Second {
			t.Errorf("drained after %s", took)
		}
		close(release)
	})
}

func TestCallsSeeRegistration(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	c := calls{known: make(chan struct{})}
	answer := func(context.Context, any) (any, error) { return &registerapi.RegistrationStatusResponse{}, nil }
	for _, step := range []struct {
		request any
		want    bool
	}{
		{&registerapi.InfoRequest{}, false},
		{&registerapi.RegistrationStatus{PluginRegistered: true}, true},
		{&registerapi.InfoRequest{}, true},
		{&registerapi.RegistrationStatus{Error: "another plugin has the name"}, false},
	} {
		if _, err := c.intercept(ctx, step.request, nil, answer); err != nil {
			t.Fatal(err)
		}
		if got := c.registered.Load(); got != step.want {
			t.Errorf("after %v: registered is %t", step.request, got)
		}
	}
}
